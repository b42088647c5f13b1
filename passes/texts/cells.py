"""Cells of the texts of passes: values, rows, ranks, and the pipelines that are alike."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from ...base.number_ranges import number_ranges
from ...ir.annotated import AnnotatedRow, AnnotatedValue
from ...ir.printer import aligned
from ...ir.type_text import type_text

T = TypeVar("T")
Line = tuple[str, ...]
NOTHING = "nothing"


def alike(items: Sequence[T]) -> list[tuple[str, T]]:
    """Each distinct object once, with the pipelines that have it: `pipelines 0, 2`."""
    found: dict[int, tuple[list[int], T]] = {}
    for number, item in enumerate(items):
        found.setdefault(id(item), ([], item))[0].append(number)
    return [(_numbered("pipeline", numbers), item) for numbers, item in found.values()]


def _numbered(what: str, numbers: Sequence[int]) -> str:
    return f"{what}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def joined(lines: Sequence[Line]) -> str:
    """Columns side by side."""
    return "\n".join(aligned(lines)) + "\n"


def row_cells(row: AnnotatedRow) -> Line:
    """A row's value, its operator, and the user's line."""
    return (*value_cells(row.out), row.op, line_cell(row.where))


def line_cell(where: str) -> str:
    """The user's line, without its text."""
    return f"# {where.split('  ')[0]}" if where else ""


def value_cells(value: AnnotatedValue) -> Line:
    """A value's name and type."""
    return value_name(value), type_cell(value)


def type_cell(value: AnnotatedValue) -> str:
    """Type and global shape."""
    return type_text(value.layout.shape, value.dtype)


def value_name(value: AnnotatedValue) -> str:
    """`%7` of row 7 of the logical graph, `v120` of a value that only ranks have."""
    return f"v{value.id}" if value.logical is None else f"%{value.logical}"


MOST_RANKS = 4
"""Of those that do not follow each other, shown one by one."""


def ranks_text(ranks: Sequence[int]) -> str:
    """`0-7`, `0,2`, `0,32,..,992`: ranks that follow each other, or at even distances, in short."""
    steps = {high - low for low, high in pairwise(ranks)}
    if len(ranks) > MOST_RANKS and len(steps) == 1 and steps != {1}:
        return f"{ranks[0]},{ranks[1]},..,{ranks[-1]}"
    return number_ranges(ranks)
