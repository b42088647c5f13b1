"""The rows by which a group of parameters comes to a stage: stored rows joined, gathered and taken apart.

Each gather starts before the group that is used before it is waited for: so it is under way while that group
is computed with, and of two groups at a time there is memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from math import prod

import torch

from ...ir.annotated import GATHER, GATHER_START, AnnotatedRow, AnnotatedValue, PerCoordinate
from ...ir.graph import Phase
from ...layout.layout import Coordinate, whole
from .gather_groups import GatherGroup

CAT, CAST = "aten.cat.default", "aten._to_copy.default"
SLICE, VIEW = "aten.slice.Tensor", "aten.view.default"
GROUP = "group"


def group_of(row: AnnotatedRow) -> GatherGroup:
    """The parameters that a gather brings."""
    group = row.kwargs[GROUP]
    assert isinstance(group, GatherGroup), "every gather names its group"
    return group


@dataclass(frozen=True, slots=True)
class GatherRows:
    """before: what makes the operand, and the start. behind: the gather, and what takes its result apart."""

    before: tuple[AnnotatedRow, ...]
    behind: tuple[AnnotatedRow, ...]

    @property
    def every(self) -> tuple[AnnotatedRow, ...]:
        """All of them in order."""
        return (*self.before, *self.behind)


def gather_rows(
    group: GatherGroup,
    values: Mapping[str, AnnotatedValue],
    held: Mapping[str, AnnotatedValue],
    numbers: Iterator[int],
) -> GatherRows:
    """values: of the parameters, which these rows make. held: what a rank stores of them."""
    writer = _Writer(numbers)
    first = values[group.names[0]]
    source = held[group.names[0]]
    size = sum(prod(values[name].layout.shape) for name in group.names)
    flat = replace(first, layout=whole((size,)), logical=None)
    if len(group.names) > 1:
        rows = tuple([held[name] for name in group.names])
        source = writer.row(replace(flat, dtype=source.dtype), CAT, (rows, 0), rows)
    if source.dtype != first.dtype:
        cast = replace(source, dtype=first.dtype)
        source = writer.row(cast, CAST, (source,), (source,), dtype=first.dtype)
    started = writer.row(source, GATHER_START, (source,), (source,), group=group)
    before = tuple(writer.rows)
    writer.rows.clear()
    if group.is_flat:
        writer.take_apart(writer.row(flat, GATHER, (started,), (started,), group=group), group, values)
    else:
        writer.rows.append(_row(replace(first, logical=None), GATHER, (started,), (started,), group=group))
    return GatherRows(before, tuple(writer.rows))


@dataclass(slots=True)
class _Writer:
    """rows: what has been written so far."""

    numbers: Iterator[int]
    rows: list[AnnotatedRow]

    def __init__(self, numbers: Iterator[int]) -> None:
        self.numbers, self.rows = numbers, []

    def row(
        self,
        like: AnnotatedValue,
        op: str,
        args: tuple[object, ...],
        reads: tuple[AnnotatedValue, ...],
        **kwargs: object,
    ) -> AnnotatedValue:
        """A row whose result is new."""
        out = replace(like, id=next(self.numbers))
        self.rows.append(_row(out, op, args, reads, **kwargs))
        return out

    def take_apart(
        self, flat: AnnotatedValue, group: GatherGroup, values: Mapping[str, AnnotatedValue]
    ) -> None:
        """Each parameter as a view of its part of the run."""
        layouts = [values[name].layout for name in group.names]

        def ends(at: Coordinate) -> list[int]:
            return [*accumulate((prod(layout.local_shape(at)) for layout in layouts), initial=0)]

        for number, name in enumerate(group.names):
            part = flat
            if len(layouts) > 1:
                low, high = (PerCoordinate(partial(_place, ends, end)) for end in (number, number + 1))
                part = self.row(flat, SLICE, (flat, 0, low, high), (flat,))
            out = replace(values[name], logical=None)
            shape = PerCoordinate(out.layout.local_shape)
            self.rows.append(_row(out, VIEW, (part, shape), (part,)))


def _place(ends: object, number: int, at: Coordinate) -> int:
    found: int = ends(at)[number]  # type: ignore[operator]
    return found


def _row(
    out: AnnotatedValue,
    op: str,
    args: tuple[object, ...],
    reads: tuple[AnnotatedValue, ...],
    **kwargs: object,
) -> AnnotatedRow:
    return AnnotatedRow(out, op, args, kwargs, out.stage, Phase.FORWARD, reads=reads)


def first_readers(rows: Sequence[AnnotatedRow], wanted: Mapping[int, GatherGroup]) -> dict[GatherGroup, int]:
    """The first row that reads any of these values, by group."""
    first: dict[GatherGroup, int] = {}
    for index, row in enumerate(rows):
        for value in row.reads:
            if value.id in wanted:
                first.setdefault(wanted[value.id], index)
    return first


def placed(
    rows: Sequence[AnnotatedRow], gathers: Sequence[GatherRows], before: Sequence[int]
) -> list[AnnotatedRow]:
    """Rows with the gathers in their order, each at or before its place, begun before the one before it."""
    places = list(before)
    for index in reversed(range(len(places) - 1)):
        places[index] = min(places[index], places[index + 1])
    result: list[AnnotatedRow] = []
    done = 0
    for index, (place, gather) in enumerate(zip(places, gathers, strict=True)):
        result += rows[done:place]
        started = gathers[index : index + 2] if index == 0 else gathers[index + 1 : index + 2]
        result += [row for each in started for row in each.before]
        result += gather.behind
        done = place
    return [*result, *rows[done:]]


def in_order(rows: Sequence[AnnotatedRow], order: Sequence[GatherGroup]) -> list[AnnotatedRow]:
    """Gathers moved up to where all stages can do them in one order."""
    made = {row.out.id: row for row in rows}
    gathers = {group_of(row): row for row in rows if row.op == GATHER}
    found = {group: GatherRows(_before(row, made), (row,)) for group, row in gathers.items()}
    moved = {row.out.id for gather in found.values() for row in gather.every}
    others = [row for row in rows if row.out.id not in moved]
    first = first_readers(others, {row.out.id: group for group, row in gathers.items()})
    return placed(
        others, [found[group] for group in order], [first.get(group, len(others)) for group in order]
    )


def _before(gather: AnnotatedRow, made: Mapping[int, AnnotatedRow]) -> tuple[AnnotatedRow, ...]:
    """The rows that make what a gather reads, in order: a chain, of which only the first reads several."""
    chain: list[AnnotatedRow] = []
    row = made.get(gather.reads[0].id)
    while row is not None:
        chain.append(row)
        row = made.get(row.reads[0].id)
    return tuple(chain[::-1])


def types_of(
    stored: Mapping[str, torch.dtype], values: Mapping[str, AnnotatedValue]
) -> dict[str, torch.dtype]:
    """What rows of parameters are stored in."""
    return {name: stored.get(name, value.dtype) for name, value in values.items()}
