"""Names of a model's tensors by pattern: `layers.*.up.weight` for the same one of many layers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from .by_key import by_key

Text = TypeVar("Text", bound=Hashable)

SHOWN = 12


def pattern_of(name: str) -> str:
    """The name with `*` for its numbers."""
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def grouped(items: Iterable[tuple[str, Text]]) -> Mapping[tuple[str, Text], Sequence[str]]:
    """Names by pattern and by what is said of them, in the order of the first of each."""
    return by_key(((pattern_of(name), text), name) for name, text in items)


def shortened(details: Iterable[tuple[str, str]], shown: int = SHOWN) -> list[tuple[str, str]]:
    """Rows of an error, one for all names of a pattern of which the same is said; at most `shown`."""
    groups = list(grouped(details).items())
    rows = [
        (names[0], text) if len(names) == 1 else (pattern, f"{text} (all {len(names)} of them)")
        for (pattern, text), names in groups[:shown]
    ]
    left = sum(len(names) for _, names in groups[shown:])
    return [*rows, ("...", f"{left} more")] if left else rows
