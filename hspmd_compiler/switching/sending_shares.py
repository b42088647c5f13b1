"""Which tasks of sending there are, across nodes and inside each, and who does what of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import gcd

from .demand import SwitchDemand
from .links import SwitchLinks
from .sending_tasks import RankInterval, SendingRole, SendingTask, TaskKey, divide_tasks

NodeTasks = dict[tuple[int, TaskKey], SendingTask]
"""By node, and the class and role there."""
NodeShares = dict[tuple[int, TaskKey], list[RankInterval]]


@dataclass(slots=True)
class SendingShares:
    """tasks: by node, class and role. shares: who sends which units. lacking: of each class, by node."""

    tasks: NodeTasks
    shares: NodeShares
    lacking: Sequence[Mapping[int, tuple[int, ...]]]

    def elements(self, node: int, number: int, role: SendingRole) -> list[RankInterval] | None:
        """Who sends which elements in a role, None where there is no such task."""
        key = (node, (number, role))
        return self.tasks[key].elements_of(self.shares[key]) if key in self.tasks else None


def sending_shares(demands: Sequence[SwitchDemand], links: SwitchLinks) -> SendingShares:
    """As even as can be. Ranks of a node with a holder relay only where the switch takes less time by it."""
    sending = _Sending(demands, links)
    across = sending.across()
    pools = dict(enumerate(links.nodes))
    shares = divide_tasks(across, pools, links.far_s, dict(enumerate(links.nic_s)))
    most_s = max(sending.across_s(shares), sending.arrival_s())
    tasks = dict(across)
    for node in sorted({node for lack in sending.lacking for node in lack}):
        for relays in (False, True):
            inside = dict(sending.inside(node, relays))
            own = divide_tasks(inside, pools, links.near_s[node], {node: 0.0})
            if sending.inside_s(node, own) <= most_s:
                break
        tasks |= inside
        shares |= own
    return SendingShares(tasks, shares, sending.lacking)


@dataclass(slots=True)
class _Sending:
    """held, lacking: of each class, by node, the ranks that hold it, and those that lack it."""

    demands: Sequence[SwitchDemand]
    links: SwitchLinks
    held: list[dict[int, tuple[int, ...]]] = field(init=False)
    lacking: list[dict[int, tuple[int, ...]]] = field(init=False)
    unit: int = field(init=False)

    def __post_init__(self) -> None:
        nodes = self.links.nodes
        self.held = [by_node(each.holders, nodes) for each in self.demands]
        self.lacking = [by_node(each.missing if each.holders else (), nodes) for each in self.demands]
        self.unit = reduce(gcd, (each.element_bytes for each in self.demands), 0) or 1

    def _task(self, number: int, senders: Sequence[int], copies: int) -> SendingTask:
        each = self.demands[number]
        return SendingTask(tuple(senders), each.elements, copies, each.element_bytes // self.unit)

    def across(self) -> NodeTasks:
        """One copy of each class to every node that lacks it and has no holder, node after node."""
        keys = [(node, number) for number, lack in enumerate(self.lacking) for node in lack]
        return {
            (node, (number, SendingRole.FIRST)): self._task(number, self.demands[number].holders, 1)
            for node, number in sorted(keys)
            if node not in self.held[number]
        }

    def inside(self, node: int, relays: bool) -> Iterator[tuple[tuple[int, TaskKey], SendingTask]]:
        """relays: ranks pass on what a holder of their node sent them too, not only what entered the node."""
        for number, lack in enumerate(self.lacking):
            targets, holders = lack.get(node, ()), self.held[number].get(node, ())
            others = len(targets) - 1
            if holders and (not relays or not others):
                yield (node, (number, SendingRole.DIRECT)), self._task(number, holders, len(targets))
            elif others > 0:
                if holders:
                    yield (node, (number, SendingRole.FIRST)), self._task(number, holders, 1)
                senders = sorted((*holders, *targets))
                yield (node, (number, SendingRole.OTHERS)), self._task(number, senders, others)

    def inside_s(self, node: int, shares: NodeShares) -> float:
        """The time of the busiest rank inside its node."""
        return max(_units(shares).values(), default=0) * self.unit * self.links.near_s[node]

    def across_s(self, shares: NodeShares) -> float:
        """The time of the busiest rank or NIC that sends to other nodes."""
        sent = _units(shares)
        by_nic: dict[int, int] = {}
        for rank, units in sent.items():
            node = self.links.nodes[rank]
            by_nic[node] = by_nic.get(node, 0) + units
        nics = [units * self.links.nic_s[node] for node, units in by_nic.items()]
        return self.unit * max((*nics, *(units * self.links.far_s for units in sent.values())), default=0.0)

    def arrival_s(self) -> float:
        """The time of the rank that lacks the most, and of the NIC that most enters by."""
        lacking: dict[int, int] = {}
        entering: dict[int, int] = {}
        for each, held, lack in zip(self.demands, self.held, self.lacking, strict=True):
            size = each.elements * each.element_bytes
            for node, targets in lack.items():
                entering[node] = entering.get(node, 0) + size * (node not in held)
                for rank in targets:
                    lacking[rank] = lacking.get(rank, 0) + size
        near = [size * self.links.near_s[self.links.nodes[rank]] for rank, size in lacking.items()]
        return max((*near, *(size * self.links.nic_s[node] for node, size in entering.items())), default=0.0)


def by_node(ranks: Sequence[int], nodes: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Ranks by their node, both in the order given."""
    found: dict[int, tuple[int, ...]] = {}
    for rank in ranks:
        found[nodes[rank]] = (*found.get(nodes[rank], ()), rank)
    return found


def _units(shares: NodeShares) -> dict[int, int]:
    """Units that each rank sends."""
    sent: dict[int, int] = {}
    for rank, low, high in (each for own in shares.values() for each in own):
        sent[rank] = sent.get(rank, 0) + high - low
    return sent
