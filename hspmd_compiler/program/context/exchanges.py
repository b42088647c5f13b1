"""Tensors of heads and tokens between ranks: of a list of moves of boxes, one step for each rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...base.by_key import by_key
from ...base.comm_plan import Box, Combine, CommKind, CommStep, Interval, Piece

Shape = tuple[int, ...]
NOTHING: Shape = (0,)
"""Of what a rank gives that only receives, and gets that only gives."""


@dataclass(frozen=True, slots=True)
class RowShare:
    """What one rank holds, or is to hold: heads [low, high) of all, and runs of tokens of the row, one after
    the other in its tensor [samples, heads, tokens, *rest]."""

    rank: int
    heads: Interval
    runs: tuple[Interval, ...]

    @property
    def tokens(self) -> int:
        """Of all runs."""
        return sum(high - low for low, high in self.runs)


@dataclass(frozen=True, slots=True)
class BoxMove:
    """A box of the sender's tensor that becomes, or is added to, one of the receiver's."""

    sender: int
    source: Box
    receiver: int
    target: Box


@dataclass(frozen=True, slots=True)
class Wire:
    """What all parts of a step have in common. samples, rest: sizes before and behind heads and tokens."""

    id: int
    kind: CommKind
    dtype: str
    samples: int
    rest: Shape
    note: str

    def shape(self, held: RowShare) -> Shape:
        """Of a rank's tensor."""
        return (self.samples, held.heads[1] - held.heads[0], held.tokens, *self.rest)


def copied(wire: Wire, sources: Sequence[RowShare], targets: Sequence[RowShare]) -> dict[int, CommStep]:
    """Each target gets a copy of all that it is to hold; sources that hold the same take turns."""
    moves: list[BoxMove] = []
    for turn, target in enumerate(targets):
        for run in target.runs:
            holders = [each for each in sources if _place(each, run) is not None]
            for holder, heads in _matched(turn, target, holders):
                moves.append(_move(wire, holder, target, heads, run))
    return _steps(wire, Combine.COPY, moves, sources, targets)


def added(wire: Wire, sources: Sequence[RowShare], targets: Sequence[RowShare]) -> dict[int, CommStep]:
    """Each element of a source is added at one target; targets that hold the same take turns.

    runs of a source: those of single targets.
    """
    moves: list[BoxMove] = []
    for turn, source in enumerate(sources):
        for run in source.runs:
            takers = [each for each in targets if _place(each, run) is not None]
            for taker, heads in _matched(turn, source, takers):
                moves.append(_move(wire, source, taker, heads, run))
    return _steps(wire, Combine.SUM, moves, sources, targets)


def _matched(turn: int, one: RowShare, others: Sequence[RowShare]) -> Iterator[tuple[RowShare, Interval]]:
    """All heads of `one`, each with one of the others that has it: itself, or whose turn it is."""
    ends = sorted({end for other in (one, *others) for end in other.heads})
    found: list[tuple[RowShare, Interval]] = []
    for low, high in pairwise(ends):
        if not one.heads[0] <= low < one.heads[1]:
            continue
        able = [other for other in others if other.heads[0] <= low and high <= other.heads[1]]
        chosen = next((other for other in able if other.rank == one.rank), None)
        if chosen is None and able:
            chosen = able[turn % len(able)]
        assert chosen is not None, "every head of a member's tokens is on one of its ranks"
        if found and found[-1][0] is chosen:
            found[-1] = (chosen, (found[-1][1][0], high))
        else:
            found.append((chosen, (low, high)))
    yield from found


def _place(held: RowShare, run: Interval) -> int | None:
    """Where a run of tokens lies in what a rank holds; None where it does not."""
    place = 0
    for low, high in held.runs:
        if low <= run[0] and run[1] <= high:
            return place + run[0] - low
        place += high - low
    return None


def _move(wire: Wire, source: RowShare, target: RowShare, heads: Interval, run: Interval) -> BoxMove:
    boxes = [_box(wire, held, heads, run) for held in (source, target)]
    return BoxMove(source.rank, boxes[0], target.rank, boxes[1])


def _box(wire: Wire, held: RowShare, heads: Interval, run: Interval) -> Box:
    place = _place(held, run)
    assert place is not None, "only what a rank holds moves"
    first = held.heads[0]
    tokens = (place, place + run[1] - run[0])
    return (
        (0, wire.samples),
        (heads[0] - first, heads[1] - first),
        tokens,
        *((0, size) for size in wire.rest),
    )


def _steps(
    wire: Wire,
    combine: Combine,
    moves: Sequence[BoxMove],
    sources: Sequence[RowShare],
    targets: Sequence[RowShare],
) -> dict[int, CommStep]:
    """A step for each rank that has a source, or a target."""
    given = {held.rank: wire.shape(held) for held in sources}
    wanted = {held.rank: wire.shape(held) for held in targets}
    sends = _pieces((move.sender, move.receiver, move.source) for move in moves)
    recvs = _pieces((move.receiver, move.sender, move.target) for move in moves)
    group = tuple(sorted(given.keys() | wanted.keys()))
    return {
        rank: CommStep(
            wire.id,
            wire.kind,
            group,
            combine,
            given.get(rank, NOTHING),
            wanted.get(rank, NOTHING),
            wanted.get(rank, NOTHING),
            sends.get(rank, ()),
            recvs.get(rank, ()),
            wire.note,
            wire.dtype,
        )
        for rank in group
    }


def _pieces(boxes: Iterable[tuple[int, int, Box]]) -> Mapping[int, tuple[Piece, ...]]:
    """By rank, a piece for each peer, its boxes in the order of the moves."""
    found = by_key((rank, (peer, box)) for rank, peer, box in boxes)
    return {
        rank: tuple(Piece(peer, tuple(own)) for peer, own in by_key(pairs).items())
        for rank, pairs in found.items()
    }
