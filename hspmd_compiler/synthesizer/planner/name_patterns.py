"""Choices by name written as few globs: `layers.*.fc` where the same holds for each of the layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from itertools import combinations
from typing import TypeVar

Choice = TypeVar("Choice", bound=Hashable)
Matches = Callable[[str, str], bool]
"""Whether a glob names this name."""


def as_globs(
    chosen: Mapping[str, Choice], others: Collection[str], matches: Matches
) -> list[tuple[str, Choice]]:
    """Globs with their choices, so that the last glob that names a name says its choice.

    others: names for which nothing is chosen; no glob with `*` names one of them. Numbers in a name become
    `*` as far as all names of the glob have one choice. A glob comes before those that are more precise.
    """
    found: dict[str, Choice] = {}
    left = dict(chosen)
    for name, choice in chosen.items():
        if name not in left:
            continue
        named = [[one for one in chosen if matches(pattern, one)] for pattern in _patterns(name)]
        true = (
            pattern
            for pattern, names in zip(_patterns(name), named, strict=True)
            if all(chosen[one] == choice for one in names)
            and not any(matches(pattern, other) for other in others)
        )
        pattern = next(true, name)
        found[pattern] = choice
        del left[name]
        if "*" in pattern:  # a plain name may name others by their ends, which a later one corrects
            for one in [one for one in left if matches(pattern, one)]:
                del left[one]
    return sorted(found.items(), key=lambda item: (len(item[0].split(".")), "*" not in item[0]))


def _patterns(name: str) -> Iterator[str]:
    """The name with `*` for numbers in it, most of them first."""
    parts = name.split(".")
    numbers = [at for at, part in enumerate(parts) if part.isdecimal()]
    for count in range(len(numbers), 0, -1):
        for places in combinations(numbers, count):
            yield ".".join("*" if at in places else part for at, part in enumerate(parts))
