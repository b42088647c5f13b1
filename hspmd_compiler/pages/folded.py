"""Long tables for people: rows that differ in their rank, and in what follows from it, are one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ..base.by_key import by_key
from ..base.number_ranges import number_ranges

Cell: TypeAlias = bool | int | float | str
Row: TypeAlias = tuple[Cell, ...]
Levels: TypeAlias = tuple[tuple[str, ...], ...]
"""Names of columns whose cells are put together; of a later level only where lines are too many still."""

MOST_LINES = 40
"""A table of so many rows is shown row by row."""
MOST_TEXT = 24
"""Characters of ranges that are written out."""


def folded(columns: Sequence[str], rows: Sequence[Row], levels: Levels) -> Sequence[Row]:
    """The rows, or fewer that say the same of many."""
    together: list[str] = []
    found = rows
    for level in levels:
        if len(found) <= MOST_LINES:
            break
        together += level
        found = _folded([name in together for name in columns], rows)
    return found


def _folded(is_folded: Sequence[bool], rows: Sequence[Row]) -> list[Row]:
    alike = by_key((tuple(_apart(row, is_folded)), row) for row in rows)
    return [
        tuple(
            _joined([row[at] for row in held]) if folds else held[0][at] for at, folds in enumerate(is_folded)
        )
        for held in alike.values()
    ]


def _apart(row: Row, is_folded: Sequence[bool]) -> list[Cell]:
    return [cell for cell, folds in zip(row, is_folded, strict=True) if not folds]


def _joined(cells: Sequence[Cell]) -> Cell:
    """`0-7,16-23` of numbers, `0:2,..,62:64` of texts; one that all have as it is."""
    distinct = list(dict.fromkeys(cells))
    if len(distinct) == 1:
        return distinct[0]
    numbers = [cell for cell in distinct if isinstance(cell, int)]
    text = number_ranges(sorted(numbers)) if len(numbers) == len(distinct) else ",".join(map(str, distinct))
    parts = text.split(",")
    return text if len(text) <= MOST_TEXT or len(parts) < 3 else ",".join([*parts[:2], "..", parts[-1]])
