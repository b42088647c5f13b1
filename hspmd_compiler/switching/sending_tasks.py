"""What is to be sent across nodes and inside them, and how its senders divide it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import gcd

from .demand import SwitchDemand
from .links import SwitchLinks
from .load_flow import LoadProblem, Workers, divided

RankInterval = tuple[int, int, int]
"""A rank, and [low, high) of what it sends: of units, or of elements."""
TaskKey = tuple[int, int]
"""A node, and the number of a class."""


@dataclass(frozen=True, slots=True)
class SendingTask:
    """Sending of a class for one node, done by any of `senders`. copies: how often each element is sent.

    element_units: what an element counts, so that classes with elements of other bytes are comparable.
    """

    senders: Workers
    elements: int
    copies: int
    element_units: int

    @property
    def units(self) -> int:
        return self.elements * self.copies * self.element_units


Tasks = dict[TaskKey, SendingTask]


@dataclass(slots=True)
class SendingTasks:
    """crossing: to nodes without a holder. inside: from holders to ranks of their node, and relays.

    lacking: by node, the ranks of each class that lack it.
    """

    crossing: Tasks = field(default_factory=dict)
    inside: Tasks = field(default_factory=dict)
    lacking: list[dict[int, tuple[int, ...]]] = field(default_factory=list)

    @classmethod
    def of(cls, demands: Sequence[SwitchDemand], nodes: Sequence[int]) -> SendingTasks:
        made = cls()
        unit = reduce(gcd, (each.element_bytes for each in demands), 0) or 1
        for number, each in enumerate(demands):
            held = by_node(each.holders, nodes)
            made.lacking.append(by_node(each.missing, nodes) if held else {})
            for node, targets in made.lacking[-1].items():
                units = each.element_bytes // unit
                if node not in held:
                    made.crossing[node, number] = SendingTask(each.holders, each.elements, 1, units)
                copies = len(targets) if node in held else len(targets) - 1
                if copies:
                    senders = held.get(node, targets)
                    made.inside[node, number] = SendingTask(senders, each.elements, copies, units)
        return made

    def divided(self, links: SwitchLinks) -> tuple[dict[TaskKey, list[RankInterval]], ...]:
        """Of all crossing, then of all inside: who sends which of its units."""
        pools = dict(enumerate(links.nodes))
        crossing = _divided(self.crossing, pools, links.far_s, dict(enumerate(links.nic_s)))
        inside: dict[TaskKey, list[RankInterval]] = {}
        for node in sorted({node for node, _ in self.inside}):
            own = {key: task for key, task in self.inside.items() if key[0] == node}
            inside |= _divided(own, pools, links.near_s[node], {node: 0.0})
        return crossing, inside


def by_node(ranks: Sequence[int], nodes: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Ranks by their node, both in the order given."""
    found: dict[int, tuple[int, ...]] = {}
    for rank in ranks:
        found[nodes[rank]] = (*found.get(nodes[rank], ()), rank)
    return found


def _divided(
    tasks: Tasks, pools: Mapping[int, int], worker_s: float, pool_s: Mapping[int, float]
) -> dict[TaskKey, list[RankInterval]]:
    """Tasks of the same senders lie one after the other, and each sender does one interval of their units."""
    alike: dict[Workers, list[TaskKey]] = {}
    for key in sorted(tasks):
        alike.setdefault(tasks[key].senders, []).append(key)
    demands = {senders: sum(tasks[key].units for key in keys) for senders, keys in alike.items()}
    division = divided(LoadProblem(demands, pools, worker_s, pool_s))
    found: dict[TaskKey, list[RankInterval]] = {}
    for senders, keys in alike.items():
        start = 0
        for key in keys:
            units = tasks[key].units
            found[key] = list(_between(division[senders], start, start + units))
            start += units
    return found


def _between(amounts: Mapping[int, int], low: int, high: int) -> Iterator[RankInterval]:
    """Who does units [low, high) of amounts that lie one after the other, counted from `low`."""
    start = 0
    for rank, amount in amounts.items():
        if max(low, start) < min(high, start + amount):
            yield rank, max(low, start) - low, min(high, start + amount) - low
        start += amount
