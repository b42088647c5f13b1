"""How large a bucket of gradients is: large enough that starting it costs little, small enough to end early.

Variable: the bytes b of a bucket, of CHOICES. Objective: what all buckets of a rank take one after the other,
and the last once more, since nothing is left then to hide it behind. All choices are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from ...base.comm_plan import CommKind, CostModel, Traffic

MIB = 1 << 20
FIRST_BYTES, MOST_BYTES = MIB, 25 * MIB
"""Of the first bucket, so that links are used early, and of the others: as in DistributedDataParallel."""
LEAST_BUCKETS = 8
"""Of a rank whose gradients are few, so that no more than that part of them is left at the end."""
CHOICES = tuple(MIB << power for power in range(9))


@dataclass(frozen=True, slots=True)
class BucketSize:
    """Limits in bytes; one parameter may be more."""

    first: int
    most: int


def bucket_size(
    asked: int | None, cost: CostModel | None, group: Sequence[int], total_bytes: int
) -> BucketSize:
    """What the strategy asks for, else what costs least. group: that sums most, and how much it sums."""
    if asked is not None:
        return BucketSize(asked, asked)
    if cost is None or not total_bytes:
        return BucketSize(FIRST_BYTES, min(MOST_BYTES, max(FIRST_BYTES, total_bytes // LEAST_BUCKETS)))

    def seconds(size: int) -> float:
        return cost.comm_s([Traffic(CommKind.ALL_REDUCE, tuple(group), {}, size)])

    return cheapest_size(seconds, total_bytes)


def cheapest_size(seconds: Callable[[int], float], total_bytes: int) -> BucketSize:
    """The size that costs least. seconds: of one bucket."""
    best = min(CHOICES, key=lambda size: seconds(min(size, total_bytes)) * (ceil(total_bytes / size) + 1))
    return BucketSize(min(FIRST_BYTES, best), best)
