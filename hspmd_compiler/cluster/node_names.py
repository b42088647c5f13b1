"""Names of nodes in ranges: `gpu[01-03,7],login`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from ..base.limits import MOST_DEVICES, beyond

PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
RULE = "names, or ranges of names such as gpu[01-03,7]"


class TooManyNodes(ValueError):
    """More names than a cluster can have."""


def node_names(text: str) -> list[str]:
    """All names, in order. ValueError: says the rule."""
    parts = PART.findall(text)
    rule = beyond("nodes or ranks", sum(map(_count, parts)), MOST_DEVICES)
    if rule:
        raise TooManyNodes(rule)
    expanded = [_expand(part) for part in parts]
    if ",".join(parts) != text or not parts or None in expanded:
        raise ValueError(RULE)
    return [name for names in expanded if names is not None for name in names]


def _count(part: str) -> int:
    """How many names a part stands for, as far as it can be read."""
    count = 1
    for piece in re.findall(r"\[([^\[\]]*)\]", part):
        found = [ends for text in piece.split(",") if (ends := RANGE.fullmatch(text))]
        count *= max(1, sum(max(0, int(ends[2] or ends[1]) - int(ends[1])) + 1 for ends in found))
    return count


def _expand(part: str) -> list[str] | None:
    """One name or range of names; several brackets multiply. None where it can't be read."""
    pieces = re.split(r"\[([^\[\]]*)\]", part)
    choices = []
    for index, piece in enumerate(pieces):
        numbers = list(_numbers(piece)) if index % 2 else [piece]
        if None in numbers:
            return None
        choices.append([number for number in numbers if number is not None])
    return ["".join(chosen) for chosen in product(*choices)]


def _numbers(text: str) -> Iterator[str | None]:
    """`01-03,7`: 01, 02, 03, 7; leading zeros stay."""
    for part in text.split(","):
        ends = RANGE.fullmatch(part)
        if ends is None:
            yield None
            continue
        low, high = ends[1], ends[2] or ends[1]
        if int(high) < int(low):
            yield None
        for number in range(int(low), int(high) + 1):
            yield f"{number:0{len(low)}d}"
