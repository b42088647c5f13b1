"""Which queries of a piece of a row see which keys of another piece, as blocks that a kernel computes whole.

A block is open (each of its queries sees each of its keys), triangular (as many queries as keys, query i sees
keys 0 to i), or banded (a window: which key a query sees depends on both places). Blocks of one query may be
computed in any order and merged by their log-sum-exp. Every query of a block sees at least one of its keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from ...base.comm_plan import Interval

BAND = 1024
"""Queries of one banded block, unless the window is longer: what bounds the memory of its mask."""


class BlockKind(Enum):
    """Who sees whom in a block."""

    OPEN = "open"
    TRIANGLE = "triangle"
    BAND = "band"


@dataclass(frozen=True, slots=True)
class VisibleBlock:
    """queries, keys: places in the two pieces. ahead: of BAND, how far the first query is behind the first
    key."""

    kind: BlockKind
    queries: Interval
    keys: Interval
    ahead: int = 0

    @property
    def pairs(self) -> int:
        """Scores that a kernel computes; of a triangle, those that count."""
        queries, keys = (high - low for low, high in (self.queries, self.keys))
        return queries * (queries + 1) // 2 if self.kind is BlockKind.TRIANGLE else queries * keys


@dataclass(frozen=True, slots=True)
class _Run:
    """Tokens [low, high) of a row; they lie in the piece from `place` on."""

    low: int
    high: int
    place: int

    def within(self, low: int, high: int) -> _Run:
        low, high = max(low, self.low), min(high, self.high)
        return _Run(low, max(low, high), self.place + low - self.low)

    @property
    def places(self) -> Interval:
        return self.place, self.place + self.high - self.low


def visible_blocks(
    q_runs: Sequence[Interval],
    k_runs: Sequence[Interval],
    documents: Sequence[int] | None,
    causal: bool,
    window: int,
) -> list[VisibleBlock]:
    """Blocks of two pieces, each given by the runs of tokens of the row that it holds.

    documents: tokens of each document of the row; None: all of it is one.
    """
    found: list[VisibleBlock] = []
    queries, keys = _runs(q_runs), _runs(k_runs)
    for low, high in _bounds(documents, max((run.high for run in (*queries, *keys)), default=0)):
        seen = [run for run in (each.within(low, high) for each in keys) if run.low < run.high]
        for own in queries if seen else ():
            run = own.within(low, high)
            if run.low < run.high:
                for other in seen:
                    found += _blocks(run, other, causal, window)
    return found


def tokens_of(runs: Sequence[Interval]) -> int:
    """How many tokens the runs hold."""
    return sum(high - low for low, high in runs)


def _runs(intervals: Sequence[Interval]) -> list[_Run]:
    found, place = [], 0
    for low, high in intervals:
        found.append(_Run(low, high, place))
        place += high - low
    return found


def _bounds(documents: Sequence[int] | None, end: int) -> Iterator[Interval]:
    low = 0
    for length in (end,) if documents is None else documents:
        if length:
            yield low, low + length
        low += length


def _blocks(queries: _Run, keys: _Run, causal: bool, window: int) -> Iterator[VisibleBlock]:
    if not causal:
        yield VisibleBlock(BlockKind.OPEN, queries.places, keys.places)
    elif window:
        yield from _banded(queries.within(keys.low, keys.high + window - 1), keys, window)
    else:
        yield from _causal(queries, keys)


def _causal(queries: _Run, keys: _Run) -> Iterator[VisibleBlock]:
    """Queries behind all keys see all; of the others, each sees the keys up to its own place."""
    among, behind = queries.within(keys.low, keys.high), queries.within(keys.high, queries.high)
    before, beside = keys.within(keys.low, among.low), keys.within(among.low, among.high)
    for run, seen in ((behind, keys), (among, before)):
        if run.low < run.high and seen.low < seen.high:
            yield VisibleBlock(BlockKind.OPEN, run.places, seen.places)
    if among.low < among.high:
        yield VisibleBlock(BlockKind.TRIANGLE, among.places, beside.places)


def _banded(queries: _Run, keys: _Run, window: int) -> Iterator[VisibleBlock]:
    step = max(BAND, window)
    for low in range(queries.low, queries.high, step):
        run = queries.within(low, low + step)
        seen = keys.within(run.low - window + 1, run.high)
        if seen.high <= run.low + 1 and run.high - seen.low <= window:
            yield VisibleBlock(BlockKind.OPEN, run.places, seen.places)
        else:
            yield VisibleBlock(BlockKind.BAND, run.places, seen.places, run.low - seen.low)
