"""Sums that are under way while ranks compute: each rank does one at a time, in the order of its starts."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from .actions import StartSum


@dataclass(slots=True)
class SumBeside:
    """A collective that has started on some ranks. begin, end: below 0 while they aren't known.

    members: what each came with. working: members whose processor is still at it. waiting: ranks that wait.
    """

    members: dict[int, StartSum] = field(default_factory=dict)
    came_s: float = 0.0
    begin: float = -1.0
    end: float = -1.0
    working: int = 0
    waiting: list[int] = field(default_factory=list)


@dataclass(slots=True)
class SumsBeside:
    """All of a step. queues: by rank, those that it has started and that aren't over. free: from when on it
    does the next."""

    of: dict[Hashable, SumBeside] = field(default_factory=dict)
    queues: dict[int, deque[Hashable]] = field(default_factory=dict)
    free: dict[int, float] = field(default_factory=dict)

    def start(self, rank: int, time: float, action: StartSum) -> Iterator[SumBeside]:
        """A rank starts one; those that begin by that."""
        found = self.of.setdefault(action.key, SumBeside())
        found.members[rank] = action
        found.came_s = max(found.came_s, time)
        self.queues.setdefault(rank, deque()).append(action.key)
        yield from self._begin(action.key)

    def over(self, key: Hashable, end: float) -> Iterator[SumBeside]:
        """One ends; those that begin by that."""
        found = self.of[key]
        found.end = end
        for rank in found.members:
            self.queues[rank].popleft()
            self.free[rank] = end
        for rank in found.members:
            if self.queues[rank]:
                yield from self._begin(self.queues[rank][0])

    def _begin(self, key: Hashable) -> Iterator[SumBeside]:
        found = self.of[key]
        group = next(iter(found.members.values())).group
        first = all(self.queues[rank][0] == key for rank in found.members)
        if found.begin < 0 and first and len(found.members) == len(group):
            found.begin = max(found.came_s, *(self.free.get(rank, 0.0) for rank in found.members))
            yield found
