"""Steps whose sizes are counted in the step: rows to the owners of their experts, and back.

Each member has rows for each other one, as many as a matrix of counts says, which all members have gathered
before: entry [r, p] is what member r has for member p. So all find the same sizes, and post one exchange.
What a step of the program says is an even load: for prices, and where numbers are not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from ...base.comm_plan import Box, Combine, CommKind, CommStep, Counted, GatherForm, Piece
from ...errors import InternalError

NOTES = {Counted.OUT: "rows to their experts, as counted", Counted.BACK: "rows of experts back, as counted"}
Counts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class RowExchange:
    """What moves. members: in the order of the counts. rest: sizes of the dims behind the rows."""

    id: int
    members: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]
    rest: tuple[int, ...]
    dtype: str
    counted: Counted

    def steps(self) -> dict[int, CommStep]:
        """Each member's step."""
        kind, group, rows = CommKind.ALL_TO_ALL, tuple(sorted(self.members)), (0, *self.rest)
        blank = CommStep(self.id, kind, group, dst_shape=rows, dtype=self.dtype, counted=self.counted)
        blank = replace(blank, note=NOTES[self.counted])
        return {rank: _numbered(blank, rank, self.members, self.counts) for rank in group}


def even_load(given: Sequence[int], taken: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Rows from each to each, where each shares out what it has as all of them are: whole numbers.

    given, taken: of each; their sums are equal.
    """
    if sum(given) != sum(taken):
        raise InternalError(f"{list(given)} rows can't be shared out as {list(taken)}")
    left, found = list(taken), []
    for rows in given:
        room = sum(left)
        parts = [rows * each // room if room else 0 for each in left]
        order = sorted(range(len(left)), key=lambda p: rows * left[p] % room if room else 0, reverse=True)
        for place in order[: rows - sum(parts)]:
            parts[place] += 1
        left = [have - part for have, part in zip(left, parts, strict=True)]
        found.append(tuple(parts))
    return tuple(found)


def counted_step(step: CommStep, rank: int, counts: Counts) -> CommStep:
    """A rank's step with the numbers that were counted; its pieces name members in the order of counts."""
    members = [piece.peer for piece in step.recvs]
    if len(counts) != len(members) or any(len(row) != len(members) or min(row) < 0 for row in counts):
        raise InternalError(
            f"the counts of step {step.id} are not those of its members",
            details=[("counts", str([list(row) for row in counts])), ("members", str(members))],
            rule="a counted step is given how many rows each of its members has for each",
        )
    return _numbered(step, rank, members, counts)


def _numbered(step: CommStep, rank: int, members: Sequence[int], counts: Counts) -> CommStep:
    me = members.index(rank)
    sent, received = counts[me], [row[me] for row in counts]
    if step.counted is Counted.BACK:
        sent, received = received, list(sent)
    rest = (step.dst_shape or (0,))[1:]
    width, rows = prod(rest), sum(received)
    return replace(
        step,
        src_view=(sum(sent), width),
        dst_view=(rows, width),
        dst_shape=(rows, *rest),
        sends=_pieces(members, sent, width),
        recvs=_pieces(members, received, width),
    )


def _pieces(members: Sequence[int], rows: Sequence[int], width: int) -> tuple[Piece, ...]:
    """One after the other, of all members."""
    found: list[Piece] = []
    start = 0
    for peer, count in zip(members, rows, strict=True):
        box: Box = ((start, start + count), (0, width))
        found.append(Piece(peer, (box,)))
        start += count
    return tuple(found)


def problems_of_counted(step: CommStep) -> Iterator[str]:
    """What a counted step of a file lacks to be filled in."""
    if step.counted is Counted.NO:
        return
    plain = (CommKind.ALL_TO_ALL, Combine.COPY, GatherForm.ALL_TO_ALL)
    if (step.kind, step.combine, step.form) != plain:
        yield "a counted step copies rows from all to all"
    members = [[piece.peer for piece in pieces] for pieces in (step.sends, step.recvs)]
    if members[0] != members[1] or sorted(members[0]) != list(step.group):
        yield "a counted step names each of its members once, in one order"
    if step.src_view is None or step.dst_view is None or step.dst_shape is None:
        yield "a counted step takes rows, and gives some"
    elif len(step.src_view) != 2 or len(step.dst_view) != 2 or not step.dst_shape:
        yield "a counted step moves rows, [rows, width]"
    elif {step.src_view[1], step.dst_view[1]} != {prod(step.dst_shape[1:])}:
        yield "the rows of a counted step are of one width"
