"""Rows of probes that pipelines share: cut in pieces that are pairwise unlike, in each probe otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from random import Random

from ...base.context import ContextCut, member_runs
from ...strategy.context_spec import ContextSpec

TRIES = 32
LEAST_PIECE = 11
"""Tokens that a member has at least: where they are very few, masks of several kinds are alike."""


def piece_count(spec: ContextSpec) -> int:
    """Into how many pieces a group cuts its rows."""
    return len(spec.pipelines) * (2 if spec.cut is ContextCut.BALANCED else 1)


def least_row(spec: ContextSpec, least: int) -> int:
    """Tokens of a row that a group shares at least, with some freedom. least: of a member."""
    return len(spec.pipelines) * max(least, LEAST_PIECE) * 3 // 2


def drawn_ring(size: int, spec: ContextSpec, drawn: Random) -> tuple[int, ...] | None:
    """Pieces of a row of so many tokens, none of few; None where chance finds no unlike ones."""
    pieces = piece_count(spec)
    least = -(-LEAST_PIECE * len(spec.pipelines) // pieces)
    room = size - pieces * least
    if room < 0:
        return None
    for _ in range(TRIES):
        ends = [0, *sorted(drawn.randint(0, room) for _ in range(pieces - 1)), room]
        found = tuple(least + high - low for low, high in pairwise(ends))
        if len(set(found)) == pieces and len(set(accumulate(found))) == pieces:
            return found
    return None


def member_tokens(ring: Sequence[int], members: int) -> list[int]:
    """Tokens of each member of a row."""
    return [sum(high - low for low, high in runs) for runs in member_runs(ring, members)]
