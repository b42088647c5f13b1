"""A sequence over several members: the names of what people choose, and how its tokens are cut. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from .comm_plan import Interval


class ContextForm(Enum):
    """How the pieces of a sequence meet in attention.

    RING: keys and values go from member to member, each attends to what has come. GATHER: to all members that
    see them, at once. HEADS: for attention each rank has some of the heads, and all tokens.
    """

    RING = "ring"
    GATHER = "gather"
    HEADS = "heads"


class ContextCut(Enum):
    """Which tokens of a row a member has.

    CONTIGUOUS: a run of them. BALANCED: one run of the row's first half and one of its second, the outermost
    the first member's: under a causal mask all have as much to do as they have tokens.
    """

    CONTIGUOUS = "contiguous"
    BALANCED = "balanced"


def row_pieces(lengths: Sequence[int], cut: ContextCut) -> tuple[int, ...]:
    """Tokens of the row's runs, in the row's order, by the tokens of each member.

    One run for each member; BALANCED: their heads, then their tails in the opposite order, of an odd number
    the tail being the longer one.
    """
    if cut is ContextCut.CONTIGUOUS:
        return tuple(lengths)
    heads = [length // 2 for length in lengths]
    tails = [length - head for length, head in zip(lengths, heads, strict=True)]
    return (*heads, *reversed(tails))


def member_runs(pieces: Sequence[int], members: int) -> tuple[tuple[Interval, ...], ...]:
    """The runs of tokens that each member has, ascending: of as many pieces as members, or twice as many."""
    ends = [sum(pieces[: number + 1]) for number in range(len(pieces))]
    runs = [(end - size, end) for end, size in zip(ends, pieces, strict=True)]
    if len(pieces) == members:
        return tuple((run,) for run in runs)
    return tuple((runs[number], runs[2 * members - 1 - number]) for number in range(members))
