"""The steps of each rank: a plan's moves, written out in the terms of the executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from ...base.comm_plan import Combine, CommKind, CommStep, Piece, box_volume
from .cells import Blocks
from .moves import ExchangeMove, Local, ReductionMove, StepMove, boxes_in, view_of
from .patterns import collectives_of


def steps_of(moves: Sequence[Sequence[StepMove]], dtype: str) -> dict[int, tuple[CommStep, ...]]:
    """The steps of every rank that has any. moves: per part of the devices, its moves in order."""
    numbers = count()
    steps: dict[int, list[CommStep]] = {}
    for part in moves:
        for move in part:
            found = (
                _reductions(move, numbers, dtype)
                if isinstance(move, ReductionMove)
                else _exchange(move, numbers, dtype)
            )
            for rank, step in found:
                steps.setdefault(rank, []).append(step)
    return {rank: tuple(steps[rank]) for rank in sorted(steps)}


def _reductions(move: ReductionMove, numbers: Iterator[int], dtype: str) -> Iterator[tuple[int, CommStep]]:
    for group in move.groups:
        step = CommStep(next(numbers), CommKind.ALL_REDUCE, group, Combine.SUM, dtype=dtype)
        for rank in group:
            yield rank, step


@dataclass(slots=True)
class _Rank:
    """What one rank sends and receives in an exchange."""

    sends: list[Piece]
    recvs: list[Piece]


def _exchange(move: ExchangeMove, numbers: Iterator[int], dtype: str) -> Iterator[tuple[int, CommStep]]:
    """One step for each rank that takes part; ranks that don't meet have steps of their own."""
    ranks = {rank: _Rank([], []) for rank in (*move.source, *move.target)}
    for (sender, receiver), blocks in _gathered(move):
        here, there = move.source[sender], move.target[receiver]
        sent = [box for each in blocks for box in boxes_in(here, each)]
        ranks[sender].sends.append(Piece(receiver, tuple(sent)))
        received = [box for each in blocks for box in boxes_in(there, each)]
        ranks[receiver].recvs.append(Piece(sender, tuple(received)))
    for kind, group in collectives_of(move):
        head = CommStep(next(numbers), kind, group, move.combine, dtype=dtype)
        for rank in group:
            yield rank, _step(head, rank, ranks[rank], move)


def _gathered(move: ExchangeMove) -> Iterable[tuple[tuple[int, int], list[Blocks]]]:
    """Blocks per (sender, receiver). Addends stay in their order, so that all copies of a sum are equal."""
    moving = [each for each in move.transfers if each.receiver not in move.kept]
    if move.combine is Combine.SUM:
        return [((each.sender, each.receiver), [each.blocks]) for each in moving]
    found: dict[tuple[int, int], list[Blocks]] = {}
    for sender, receiver, blocks, _ in moving:
        found.setdefault((sender, receiver), []).append(blocks)
    return found.items()


def _step(head: CommStep, rank: int, own: _Rank, move: ExchangeMove) -> CommStep:
    source, target = move.source.get(rank), move.target.get(rank)
    if source is not None and rank in move.kept:
        own.sends.append(_whole(rank, source))
        own.recvs.append(_whole(rank, source))
    shape = None if target is None else view_of(target)
    return CommStep(
        head.id,
        head.kind,
        head.group,
        head.combine,
        None if source is None else view_of(source),
        shape,
        shape,
        tuple(own.sends),
        tuple(own.recvs),
        dtype=head.dtype,
    )


def _whole(rank: int, local: Local) -> Piece:
    """A tensor that stays as it is."""
    box = tuple((0, length) for length in view_of(local))
    return Piece(rank, (box,) if box_volume(box) else ())
