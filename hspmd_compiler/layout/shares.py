"""Shares as weights: how many whole units (heads, rows, experts) each of several devices gets."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from heapq import heapify, heapreplace

from ..errors import InternalError


def assign_units(units: int, weights: Sequence[int | float]) -> tuple[int, ...]:
    """Whole units per device, by weights: the last of all devices is done as early as can be.

    Variables: counts, whole, that add up to the units; a weight of 0 has none. Objective: the least greatest
    count / weight. Optimum: units are handed out one by one to whoever is done first with one more; where
    several are, to the one with the fewest, then to the first. So weights that add up to the units, or to a
    part that divides them, are kept in proportion; of equal weights the first have one more.
    """
    if units < 0 or not any(weights) or min(weights) < 0:
        raise InternalError(f"weights {list(weights)} can't share out {units} units")
    if len(set(weights)) == 1:
        each, odd = divmod(units, len(weights))
        return (each + 1,) * odd + (each,) * (len(weights) - odd)
    return _assigned(units, tuple(weights))


@lru_cache(maxsize=4096)
def _assigned(units: int, weights: tuple[int | float, ...]) -> tuple[int, ...]:
    """In exact fractions: by the floor of its part of all nobody is done later than all together."""
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    counts = [int(units * weight / total) for weight in exact]
    heap = [
        ((count + 1) / weight, count, place)
        for place, (count, weight) in enumerate(zip(counts, exact, strict=True))
        if weight
    ]
    heapify(heap)
    for _ in range(units - sum(counts)):
        _, count, place = heap[0]
        counts[place] = count + 1
        heapreplace(heap, ((count + 2) / exact[place], count + 1, place))
    return tuple(counts)
