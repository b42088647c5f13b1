"""Sums of gradients that ranks have started and not yet waited for: each waits in the order of its starts.

Members of a group start its sums in one order, or their starts would not meet; so they wait in one order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic

from ...base.comm_plan import GradBucket
from ...errors import VerifyError
from .blocked import RankRun, V
from .matching import OURS

WAIT_RULE = "a rank waits for the sums that it has started, in the order of their starts"


@dataclass(slots=True)
class StartedSums(Generic[V]):
    """By rank the buckets that are under way, each with its sum."""

    of: dict[int, deque[tuple[RankRun[V], GradBucket, V]]] = field(default_factory=dict)

    def put(self, run: RankRun[V], bucket: GradBucket, value: V) -> None:
        """A sum that a rank has started, and which is there."""
        self.of.setdefault(run.rank, deque()).append((run, bucket, value))

    def take(self, run: RankRun[V], bucket: GradBucket) -> V:
        """The sum that a rank waits for, the first that it has started."""
        held = self.of.get(run.rank)
        first = held[0][1] if held else None
        if held is None or first is None or first.id != bucket.id:
            started = "nothing" if first is None else f"bucket {first.id}"
            raise VerifyError(
                f"rank {run.rank} waits for bucket {bucket.id}, and has started {started} first",
                details=[("tensor", run.tensor()), (f"rank {run.rank}", run.doing())],
                rule=WAIT_RULE,
                fix=OURS,
            )
        return held.popleft()[2]

    def check_end(self) -> None:
        """Raise for sums that nobody waits for."""
        left = [(run, bucket) for held in self.of.values() for run, bucket, _ in held]
        if left:
            raise VerifyError(
                f"{len(left)} sums of gradients are started and never waited for",
                details=[(f"rank {run.rank}", f"bucket {bucket.id}") for run, bucket in left[:12]],
                rule=WAIT_RULE,
                fix=OURS,
            )
