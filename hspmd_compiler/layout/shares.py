"""Shares as weights: how many whole units (heads, rows, experts) each of several devices gets."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from heapq import heapify, heapreplace

from ..errors import InternalError


@lru_cache(maxsize=4096)
def _assigned(units: int, weights: tuple[Fraction, ...]) -> tuple[int, ...]:
    total = sum(weights)
    counts = [int(units * weight / total) for weight in weights]  # nobody is done later than all together
    heap = [
        ((count + 1) / weight, count, place)
        for place, (count, weight) in enumerate(zip(counts, weights, strict=True))
        if weight
    ]
    heapify(heap)
    for _ in range(units - sum(counts)):
        _, count, place = heap[0]
        counts[place] = count + 1
        heapreplace(heap, ((count + 2) / weights[place], count + 1, place))
    return tuple(counts)


def assign_units(units: int, weights: Sequence[int | float]) -> tuple[int, ...]:
    """Whole units per device, by weights: the last of all devices is done as early as can be.

    Variables: counts, whole, that add up to the units; a weight of 0 has none. Objective: the least greatest
    count / weight. Optimum: units are handed out one by one to whoever is done first with one more; where
    several are, to the one with the fewest, then to the first. So weights that add up to the units, or to a
    part that divides them, are kept in proportion; of equal weights the first have one more.
    """
    if units < 0 or not any(weights) or min(weights) < 0:
        raise InternalError(f"weights {list(weights)} can't share out {units} units")
    return _assigned(units, tuple(map(Fraction, weights)))
