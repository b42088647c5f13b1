"""Sending of classes as tasks of ranks that may do them, and how these divide it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from .load_flow import LoadProblem, Workers, divided

RankInterval = tuple[int, int, int]
"""A rank, and [low, high) of what it sends: of units, or of elements."""


class SendingRole(Enum):
    """DIRECT: all copies from holders. Else FIRST: one copy, from a holder to one rank of the node; OTHERS:
    from there, or from a holder, to all other ranks of the node.
    """

    DIRECT = "direct"
    FIRST = "first"
    OTHERS = "others"


TaskKey = tuple[int, SendingRole]
"""The number of a class, and a role."""


@dataclass(frozen=True, slots=True)
class SendingTask:
    """Sending of a class to one node, done by any of `senders`. copies: how often each element is sent.

    element_units: what an element counts, so that classes with elements of other bytes are comparable.
    """

    senders: Workers
    elements: int
    copies: int
    element_units: int

    @property
    def units(self) -> int:
        return self.elements * self.copies * self.element_units

    def elements_of(self, units: Sequence[RankInterval]) -> list[RankInterval]:
        """Intervals of units as intervals of elements; one that two share goes to the second."""
        size = self.copies * self.element_units
        cut = ((rank, low // size, high // size) for rank, low, high in units)
        return [(rank, low, high) for rank, low, high in cut if low < high]


def divide_tasks(
    tasks: Mapping[tuple[int, TaskKey], SendingTask],
    pools: Mapping[int, int],
    worker_s: float,
    pool_s: Mapping[int, float],
) -> dict[tuple[int, TaskKey], list[RankInterval]]:
    """Who sends which units of each task.

    Tasks of the same senders lie one after the other, and each sender does one interval of all their units.
    """
    alike: dict[Workers, list[tuple[int, TaskKey]]] = {}
    for key, task in tasks.items():
        alike.setdefault(task.senders, []).append(key)
    demands = {senders: sum(tasks[key].units for key in keys) for senders, keys in alike.items()}
    division = divided(LoadProblem(demands, pools, worker_s, pool_s))
    found: dict[tuple[int, TaskKey], list[RankInterval]] = {}
    for senders, keys in alike.items():
        start = 0
        for key in keys:
            stop = start + tasks[key].units
            found[key] = list(_between(division[senders], start, stop))
            start = stop
    return found


def _between(amounts: Mapping[int, int], low: int, high: int) -> Iterator[RankInterval]:
    """Who does units [low, high) of amounts that lie one after the other, counted from `low`."""
    start = 0
    for rank, amount in amounts.items():
        if max(low, start) < min(high, start + amount):
            yield rank, max(low, start) - low, min(high, start + amount) - low
        start += amount
