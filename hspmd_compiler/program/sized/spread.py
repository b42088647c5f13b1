"""A step's plan from what a batch holds: rows, or samples, shared out by the strategy's shares.

Any plan gives the same numbers. This one keeps pipelines equally busy for what they were compiled to take:
longest rows first, each to the pipeline that has the least for its share. It is no search: a planner that
knows devices makes plans of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from ...base.context import row_pieces
from .size_range import SizeRange
from .sizes import Count, MicroSizes
from .step_plan import StepPlan


def spread_rows(
    lengths: Sequence[int], sizes: SizeRange, documents: Sequence[Sequence[int]] = ()
) -> StepPlan:
    """The plan of rows of so many tokens, which lie one behind the other in the batch.

    documents: the lengths of each row's documents. A context-parallel group takes a row in pieces by its
    members' shares.
    """
    shares = _shares(sizes)
    takers = dict.fromkeys(sizes.group_of(number) for number in range(len(shares)))
    load = dict.fromkeys(takers, 0.0)
    share = {taker: sum(shares[member] for member in taker) for taker in takers}
    chosen: dict[int, tuple[int, ...]] = {}
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        taker = min(takers, key=lambda each: ((load[each] + lengths[row]) / share[each], each))
        load[taker] += lengths[row]
        chosen[row] = taker
    pipelines: list[list[MicroSizes]] = [[] for _ in shares]
    firsts = [0, *accumulate(lengths)]
    for row, length in enumerate(lengths):
        taker, held = chosen[row], tuple(documents[row]) if documents else ()
        pieces = _pieces(length, [shares[member] for member in taker])
        ring = row_pieces(pieces, sizes.cut_of(taker[0])) if len(taker) > 1 else ()
        for member, piece in zip(taker, pieces, strict=True):
            pipelines[member].append(MicroSizes(1, piece, ring=ring, first=firsts[row], documents=held))
    return StepPlan(tuple(map(tuple, pipelines)))


def spread_samples(count: int, sizes: SizeRange) -> StepPlan:
    """The plan of so many samples: as many micro-batches as were compiled, more where they get too large."""
    pipelines, first = [], 0
    shares = _pieces(count, _shares(sizes))
    for number, share in enumerate(shares):
        compiled = len(sizes.probes[0].pipelines[number]) if sizes.probes else 1
        parts = min(max(compiled, -(-share // sizes.high)), max(share // max(sizes.low, 1), 1))
        micros = []
        for size in _pieces(share, [1.0] * parts):
            if size:
                micros.append(MicroSizes(size, first=first))
            first += size
        pipelines.append(tuple(micros))
    return StepPlan(tuple(pipelines))


def uniform_plan(sizes: SizeRange, size: int, counts: Sequence[int]) -> StepPlan:
    """The plan of so many micro-batches of each pipeline, all of one size; members of a group share a row."""
    shares, first = _shares(sizes), 0
    pipelines: list[tuple[MicroSizes, ...]] = [()] * len(counts)
    for taker in dict.fromkeys(sizes.group_of(number) for number in range(len(counts))):
        pieces = _pieces(size, [shares[member] for member in taker])
        ring = row_pieces(pieces, sizes.cut_of(taker[0])) if len(taker) > 1 else ()
        for member, piece in zip(taker, pieces, strict=True):
            one = MicroSizes(1, piece, ring=ring) if sizes.unit is Count.TOKENS else MicroSizes(size)
            pipelines[member] = tuple(
                replace(one, first=first + size * number) for number in range(counts[taker[0]])
            )
        first += size * counts[taker[0]]
    return StepPlan(tuple(pipelines))


def _shares(sizes: SizeRange) -> list[float]:
    """What each pipeline takes, as the strategy says, or of the first probe."""
    if sizes.shares:
        return list(sizes.shares)
    probe, unit = sizes.probes[0], sizes.unit
    return [
        float(sum(each.tokens if unit is Count.TOKENS else each.samples for each in micros)) or 1.0
        for micros in probe.pipelines
    ]


def _pieces(count: int, shares: Sequence[float]) -> tuple[int, ...]:
    """A count cut by shares: each boundary is rounded, so that the pieces add up."""
    ends = [0, *(round(count * part / sum(shares)) for part in accumulate(shares))]
    return tuple(high - low for low, high in pairwise(ends))
