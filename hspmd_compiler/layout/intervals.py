"""Sets of intervals within a dim, and tuples of them, one set per coordinate of an axis.

Those of a set are sorted and disjoint, and none is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise

from ..base.comm_plan import Interval

Intervals = tuple[Interval, ...]
Sets = tuple[Intervals, ...]


def union(intervals: Iterable[Interval]) -> Intervals:
    """Sorted, merged, without empty intervals."""
    merged: list[Interval] = []
    for low, high in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def intersect(first: Intervals, second: Intervals) -> Intervals:
    """Common elements of two interval sets."""
    return union((max(a, c), min(b, d)) for a, b in first for c, d in second)


def subtract(first: Intervals, second: Intervals) -> Intervals:
    """Elements of `first` that are not in `second`."""
    left = list(first)
    for low, high in second:
        left = [part for a, b in left for part in ((a, min(b, low)), (max(a, high), b)) if part[1] > part[0]]
    return union(left)


def within(held: Intervals, wanted: Intervals) -> Intervals:
    """Positions of `wanted` (a subset of `held`) in the local tensor that stores `held` in order."""
    return union(placed(held, wanted))


def placed(held: Intervals, wanted: Intervals) -> Intervals:
    """As `within`, but intervals that are apart in the whole dim stay apart where they touch locally."""
    result = []
    offset = 0
    for low, high in held:
        for start, stop in wanted:
            begin, end = max(low, start), min(high, stop)
            if begin < end:
                result.append((offset + begin - low, offset + end - low))
        offset += high - low
    return tuple(result)


def shifted(intervals: Iterable[Interval], offset: int) -> Intervals:
    """Each interval moved up by `offset`."""
    return tuple((low + offset, high + offset) for low, high in intervals)


def at_local(held: Intervals, local: Intervals) -> Intervals:
    """The elements of the whole dim that lie at `local` in a tensor that stores `held` in order."""
    found = []
    start = 0
    for low, high in held:
        inside = ((max(a, start), min(b, start + high - low)) for a, b in local)
        found += [(low + a - start, low + b - start) for a, b in inside if a < b]
        start += high - low
    return tuple(found)


def repeated(intervals: Intervals, period: int, count: int) -> Intervals:
    """So many copies, each a period behind the one before."""
    return union((low + k * period, high + k * period) for k in range(count) for low, high in intervals)


def map_sets(sets: Sets, change: Callable[[Intervals], Intervals]) -> Sets:
    """Apply `change` to the set of each coordinate."""
    return tuple(change(held) for held in sets)


def is_exact(size: int, sets: Sets) -> bool:
    """Whether the sets cover [0, size) and no two overlap."""
    flat = sorted(interval for held in sets for interval in held)
    return sum(high - low for low, high in flat) == size and is_disjoint(flat)


def is_disjoint(intervals: Sequence[Interval]) -> bool:
    """Whether sorted intervals have no common element."""
    return all(first[1] <= second[0] for first, second in pairwise(intervals))


def covers(size: int, sets: Sets) -> bool:
    """Whether every element of [0, size) is held somewhere."""
    return union(interval for held in sets for interval in held) == (((0, size),) if size else ())


def is_full(size: int, sets: Sets) -> bool:
    """Whether every coordinate holds all of [0, size)."""
    return all(held == ((0, size),) for held in sets)


def first_period(sets: Sets, period: int) -> Sets:
    """What of the sets lies in [0, period)."""
    return tuple(intersect(held, ((0, period),)) for held in sets)


def period_of(size: int, sets: Sets) -> int:
    """The smallest divisor of `size` with which every set repeats."""
    if all(len(held) <= 1 and held != ((0, size),) for held in sets):
        return size
    for period in _divisors(size):
        if all(_repeats(held, size, period) for held in sets):
            return period
    return size


def _repeats(held: Intervals, size: int, period: int) -> bool:
    first = intersect(held, ((0, period),))
    return (
        sum(b - a for a, b in held) == (size // period) * sum(b - a for a, b in first)
        and repeated(first, period, size // period) == held
    )


@cache
def _divisors(size: int) -> tuple[int, ...]:
    small = [d for d in range(1, int(size**0.5) + 1) if size % d == 0]
    return tuple(sorted({*small, *(size // d for d in small)}))
