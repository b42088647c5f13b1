"""Processors that several ranks compute on at once: each gets the same share, and all slow each other."""

from __future__ import annotations

import heapq
from collections.abc import Callable


def unslowed(ranks: int) -> float:
    """Ranks that each have a core don't slow each other."""
    return 1.0


class SharedHost:
    """Processor sharing by a virtual clock: it advances as a rank that computes does.

    slowed: how many times longer so many ranks that compute at once take, beside waiting for a core.
    A computation of s seconds that comes at virtual time v ends at v + s, however many come and go.
    version: which of the announced ends still holds.
    """

    def __init__(self, cores: int, slowed: Callable[[int], float] = unslowed) -> None:
        self.cores = cores
        self._slowed = slowed
        self.version = 0
        self._time = self._virtual = 0.0
        self._running: list[tuple[float, int, object]] = []
        self._count = 0

    @property
    def _rate(self) -> float:
        return 1.0 / self.stretch(len(self._running)) if self._running else 1.0

    def stretch(self, ranks: int) -> float:
        """How many times longer so many take that compute at once."""
        return max(1.0, ranks / self.cores) * self._slowed(ranks)

    def came(self, time: float, work: object, seconds: float) -> None:
        """A rank begins to compute, or a sum to be made beside one. work: what `ended` gives back."""
        self._virtual += (time - self._time) * self._rate
        self._time = time
        self._count += 1
        self.version += 1
        heapq.heappush(self._running, (self._virtual + seconds, self._count, work))

    def ended(self, time: float) -> object:
        """What ends at this time, as `next_end` announced."""
        self._time = time
        self._virtual, _, work = heapq.heappop(self._running)
        self.version += 1
        return work

    def next_end(self) -> float | None:
        """When the next computation ends if nobody else comes; None where nobody computes."""
        if not self._running:
            return None
        return self._time + max(0.0, self._running[0][0] - self._virtual) / self._rate
