"""The plan of a conversion between layouts, written out as the steps of each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import count

from ..base.comm_plan import Combine, CommKind, CommStep, Piece, box_volume
from ..rules.rules import is_addend
from .resolve_annotations.moves import ExchangeMove
from .resolve_annotations.resolve import Component
from .resolve_annotations.steps import steps_of
from .resolve_annotations.text import choice_text
from .resolve_layouts import WantedLayouts, conversion_of, plan

Shape = tuple[int, ...]
Steps = Mapping[int, CommStep]
"""The step of each rank."""

EMPTY = (0,)
"""A tensor of a rank that has nothing between two rounds."""


@cache
def rounds(wanted: WantedLayouts) -> tuple[Steps, ...]:
    """The plan written out: one step of every rank in each round, at least one round.

    Ids count from 0. A rank that has nothing to do in a round keeps its tensor. Between stages there is one
    step that all ranks of both take part in.
    """
    parts = plan(wanted)
    if wanted.receivers:
        steps = steps_of([[_joint(wanted, parts)]], wanted.dtype)
        return ({rank: _shaped(own[0], rank, wanted) for rank, own in steps.items()},)
    return _in_rounds(wanted, parts)


def _joint(wanted: WantedLayouts, parts: Sequence[Component]) -> ExchangeMove:
    """All that goes from stage to stage, as one exchange."""
    transfers = [
        transfer
        for part in parts
        for move in part.moves()
        if isinstance(move, ExchangeMove)
        for transfer in move.transfers
    ]
    conversion = conversion_of(wanted)
    combine = Combine.SUM if is_addend(wanted.source) else Combine.COPY
    return ExchangeMove(
        transfers, combine, conversion.before, conversion.after, frozenset(), CommKind.SEND_RECV
    )


def _in_rounds(wanted: WantedLayouts, parts: Sequence[Component]) -> tuple[Steps, ...]:
    moves = [part.moves() for part in parts]
    notes = {rank: choice_text(part) if wanted.priced else "" for part in parts for rank in part.devices}
    views = {rank: wanted.source.local_shape(at) for rank, at in wanted.senders.items()}
    found: list[Steps] = []
    first, last = 0, max(1, *map(len, moves)) - 1
    for number in range(last + 1):
        steps = steps_of([each[number : number + 1] for each in moves], wanted.dtype)
        spare = count(1 + max((step.id for own in steps.values() for step in own), default=-1))
        own = {
            rank: _joined(steps[rank], view)
            if rank in steps
            else _idle(rank, view, wanted.dtype, next(spare))
            for rank, view in views.items()
        }
        found.append(
            {rank: replace(step, id=step.id + first, note=notes[rank]) for rank, step in own.items()}
        )
        first += next(spare)
        views = {rank: views[rank] if step.dst_view is None else step.dst_view for rank, step in own.items()}
    found[last] = {rank: _shaped(step, rank, wanted) for rank, step in found[last].items()}
    return tuple(found)


def _shaped(step: CommStep, rank: int, wanted: WantedLayouts) -> CommStep:
    """The step that gives the tensor as the target has it, not as factors of its dims."""
    if step.dst_view is None:
        return step
    return replace(step, dst_shape=wanted.target.local_shape(wanted.places[rank]))


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


def on_ranks(steps: Steps, ranks: Mapping[int, int], ids: Mapping[int, int]) -> dict[int, CommStep]:
    """A round of ranks that are numbered otherwise, and the steps, too: their new numbers by the old ones."""
    return {ranks[rank]: _renamed(step, ranks, ids[step.id]) for rank, step in steps.items()}


def _renamed(step: CommStep, ranks: Mapping[int, int], number: int) -> CommStep:
    def pieces(own: Sequence[Piece]) -> tuple[Piece, ...]:
        return tuple(Piece(ranks[piece.peer], piece.boxes) for piece in own)

    group = tuple(sorted(ranks[rank] for rank in step.group))
    return replace(step, id=number, group=group, sends=pieces(step.sends), recvs=pieces(step.recvs))
