"""Conversions inside a stage that are planned by cells, as pairs of annotations are.

So are all of markers, and those of layouts with several cuts, which no single exchange along a cut does.
Ranks are numbered from 0 in their stage, so that equal stages have equal plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import count

from ..annotations.annotation import Addend
from ..annotations.intervals import intersect
from ..annotations.layout import Coordinate, Layout
from ..annotations.layout_rows import held_rows
from ..annotations.several_cuts import addends_of, is_plain
from ..comm_plan import Combine, CommKind, CommStep, Piece, box_volume
from ..graph.annotated import CommMarker
from ..graph.rules import is_addend
from .resolve_annotations.check import element_bytes
from .resolve_annotations.resolution import Part
from .resolve_annotations.resolve import FLAT, resolve_sides
from .resolve_annotations.sides import Side, devices_of, make_side
from .resolve_annotations.steps import steps_of
from .resolve_annotations.text import choice_text
from .resolve_annotations.ways import Pricing

Shape = tuple[int, ...]
Steps = Mapping[int, CommStep]
"""The step of each rank of a stage."""

EMPTY = (0,)
"""A tensor of a rank that has nothing between two rounds."""


@cache
def by_cells(source: Layout, target: Layout) -> bool:
    """Whether only this way is left: a side has several cuts, or addends are cut anew."""
    return not is_plain(source) or not is_plain(target) or is_addend(target)


@cache
def side_of(layout: Layout, ranks: int, batch: int) -> Side:
    """What the ranks of a stage hold of the micro-batch at coordinate `batch`."""
    held = {rank: held_rows(layout, Coordinate(rank, batch)) for rank in range(ranks)}
    addends = {rank: Addend(0, number) for rank, number in enumerate(addends_of(layout, ranks))}
    return make_side(held, addends, dict.fromkeys(held, devices_of(held)), len(layout.dims))


@cache
def plan(source: Layout, target: Layout, ranks: int, batch: int, dtype: str) -> tuple[Part, ...]:
    """The cheapest way of each set of ranks that have nothing to do with others."""
    before, after = side_of(source, ranks, batch), side_of(target, ranks, batch)
    return resolve_sides(before, after, Pricing(FLAT, element_bytes(dtype)))


def plan_text(marker: CommMarker, ranks: int, batch: int, dtype: str) -> str:
    """The ways that a marker's ranks take, and why."""
    parts = plan(marker.source, marker.target, ranks, batch, dtype)
    return " | ".join(dict.fromkeys(map(choice_text, parts)))


@cache
def rounds(source: Layout, target: Layout, ranks: int, batch: int, dtype: str) -> tuple[Steps, ...]:
    """The plan written out: one step of every rank in each round, at least one round.

    Ids count from 0. A rank that has nothing to do in a round keeps its tensor.
    """
    parts = plan(source, target, ranks, batch, dtype)
    moves = [part.moves() for part in parts]
    notes = {rank: choice_text(part) for part in parts for rank in part.devices}
    views = {rank: source.local_shape(Coordinate(rank, batch)) for rank in range(ranks)}
    found: list[Steps] = []
    first = 0
    for number in range(max(1, *map(len, moves))):
        steps = steps_of([each[number : number + 1] for each in moves], dtype)
        spare = count(1 + max((step.id for own in steps.values() for step in own), default=-1))
        own = {
            rank: _joined(steps[rank], view) if rank in steps else _idle(rank, view, dtype, next(spare))
            for rank, view in views.items()
        }
        found.append(
            {rank: replace(step, id=step.id + first, note=notes[rank]) for rank, step in own.items()}
        )
        first += next(spare)
        views = {rank: views[rank] if step.dst_view is None else step.dst_view for rank, step in own.items()}
    return tuple(found)


def _joined(steps: Sequence[CommStep], view: Shape) -> CommStep:
    """A rank's one step of a round, such that it has a tensor before and after. view: of the one before."""
    (step,) = steps
    if step.kind is CommKind.ALL_REDUCE:
        return step
    if step.dst_view is None:
        step = replace(step, dst_view=EMPTY, dst_shape=EMPTY)
    return step if step.src_view is not None else replace(step, src_view=view)


def _idle(rank: int, view: Shape, dtype: str, number: int) -> CommStep:
    """Keep what is there."""
    box = tuple((0, length) for length in view)
    own = (Piece(rank, (box,)),) if box_volume(box) else ()
    alone = (rank,)
    return CommStep(number, CommKind.SEND_RECV, alone, Combine.COPY, view, view, view, own, own, dtype=dtype)


def on_ranks(steps: Steps, ranks: Sequence[int], ids: Mapping[int, int]) -> dict[int, CommStep]:
    """A round of ranks that are numbered otherwise. ids: of the steps there, by their ids here."""
    return {ranks[place]: _renamed(step, ranks, ids[step.id]) for place, step in steps.items()}


def _renamed(step: CommStep, ranks: Sequence[int], number: int) -> CommStep:
    def pieces(own: Sequence[Piece]) -> tuple[Piece, ...]:
        return tuple(Piece(ranks[piece.peer], piece.boxes) for piece in own)

    group = tuple(sorted(ranks[place] for place in step.group))
    return replace(step, id=number, group=group, sends=pieces(step.sends), recvs=pieces(step.recvs))


@cache
def is_local(source: Layout, target: Layout, ranks: int, batches: int) -> bool:
    """Whether every rank holds settled what the target gives it, of every micro-batch."""
    if is_addend(source) or is_addend(target):
        return False
    places = (Coordinate(rank, batch) for rank in range(ranks) for batch in range(batches))
    return all(
        intersect(have, need) == need
        for at in places
        for have, need in zip(held_rows(source, at), held_rows(target, at), strict=True)
    )
