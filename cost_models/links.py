"""Seconds of communication on a cluster's links: rings, trees, exchanges and messages that share a NIC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log2

from ..base.comm_plan import CommKind, GatherForm, Traffic
from ..cluster.calibration import GRADIENT, Fit
from ..cluster.cluster import ClusterSpec, NodeSlot
from ..cluster.link import LinkSpec

Volumes = Mapping[tuple[int, int], float]
"""Bytes by (sender, receiver)."""
ONE_NODE, ACROSS = "one_node", "across"


@dataclass(frozen=True, slots=True, eq=False)
class ClusterCost:
    """A CostModel of ranks that sit in `slots` of a cluster."""

    cluster: ClusterSpec
    slots: Mapping[int, NodeSlot]
    _paths: dict[tuple[NodeSlot, NodeSlot], LinkSpec | None] = field(default_factory=dict)
    _rings: dict[tuple[tuple[int, ...], float, float], float] = field(default_factory=dict)

    def comm_s(self, traffic: Sequence[Traffic]) -> float:
        """See CostModel: the longest of what goes on at once, and of what each NIC has to carry for all."""
        alone = [self.traffic_s(one) for one in traffic]
        if not any(alone):
            return 0.0
        loads: dict[int, float] = {}
        for one in traffic:
            for node, size in self._nic_loads(one).items():
                loads[node] = loads.get(node, 0.0) + size
        shared = [self._nic(node).seconds(size) for node, size in loads.items() if size]
        return max((*alone, *shared))

    def near(self, rank: int) -> frozenset[int] | None:
        """See CostModel: the ranks of its node."""
        node = self.slots[rank].node
        if len({slot.node for slot in self.slots.values()}) == 1:
            return None
        return frozenset(one for one, slot in self.slots.items() if slot.node == node)

    def traffic_s(self, traffic: Traffic) -> float:
        """One collective or exchange that has the links for itself."""
        if traffic.kind is CommKind.ALL_REDUCE:
            return self.all_reduce_s(traffic.ranks, traffic.size)
        return self.exchange_s(traffic.ranks, traffic.volumes, traffic.kind)

    def all_reduce_s(self, group: Sequence[int], size_bytes: float, rings: float = 1.0) -> float:
        """A ring by its slowest link, 2 (n - 1) times 1/n of the bytes; for few bytes a tree there and back.

        rings: that share each NIC at once.
        """
        members = tuple(group)
        key = (members, size_bytes, rings)
        if key not in self._rings:
            self._rings[key] = self._all_reduce_s(members, size_bytes, rings)
        return self._rings[key]

    def gradient_s(self, group: Sequence[int], size_bytes: float, rings: float = 1.0) -> float:
        """The sum of a gradient bucket: as measured of such, else as any other all-reduce."""
        members = tuple(group)
        fit = self._fit(GRADIENT, members) if len(members) > 1 and size_bytes else None
        if fit is None:
            return self.all_reduce_s(members, size_bytes, rings)
        return fit.seconds(bytes=size_bytes) + fit.per_byte_s * size_bytes * (rings - 1)

    def _all_reduce_s(self, group: tuple[int, ...], size_bytes: float, rings: float) -> float:
        count = len(group)
        if count < 2 or not size_bytes:
            return 0.0
        fit = self._fit(CommKind.ALL_REDUCE.value, group)
        if fit is not None:
            return fit.seconds(bytes=size_bytes) + fit.per_byte_s * size_bytes * (rings - 1)
        hops = self._hops(group)
        ring = 2 * (count - 1) * max(self._hop_s(*hop, size_bytes / count, rings) for hop in hops)
        tree = 2 * ceil(log2(count)) * max(self._hop_s(*hop, size_bytes, rings) for hop in hops)
        return min(ring, tree)

    def busy_part(self, kind: str, group: Sequence[int]) -> float:
        """The part of a measured collective's seconds for which each member works on a processor."""
        fit = self._fit(kind, tuple(group)) if len(group) > 1 else None
        return min(1.0, fit.busy) if fit is not None else 0.0

    def ring_pass_s(
        self,
        group: Sequence[int],
        piece_bytes: float,
        rings: float = 1.0,
        kind: CommKind = CommKind.ALL_GATHER,
    ) -> float:
        """Each piece once around, as in an all-gather or a reduce-scatter of equal pieces."""
        if len(group) < 2 or not piece_bytes:
            return 0.0
        fit = self._fit(kind.value, tuple(group))
        if fit is not None:
            return fit.seconds(bytes=piece_bytes * (len(group) - 1))
        hops = self._hops(tuple(group))
        return (len(group) - 1) * max(self._hop_s(*hop, piece_bytes, rings) for hop in hops)

    def unequal_forms_s(
        self, kind: CommKind, group: Sequence[int], sizes: Sequence[float], rings: float = 1.0
    ) -> dict[GatherForm, float]:
        """See CostModel. rings: that share each NIC at once with a padded one."""
        scatters = kind is CommKind.REDUCE_SCATTER
        volumes = {
            (other, one) if scatters else (one, other): size
            for one, size in zip(group, sizes, strict=True)
            for other in group
            if other != one
        }
        found = {
            GatherForm.ALL_TO_ALL: self.exchange_s(group, volumes, CommKind.ALL_TO_ALL),
            GatherForm.PADDED: self.ring_pass_s(group, max(sizes, default=0.0), rings, kind),
        }
        if not scatters:
            found[GatherForm.BROADCASTS] = self._broadcasts_s(tuple(group), [size for size in sizes if size])
        return found

    def _broadcasts_s(self, group: tuple[int, ...], sizes: Sequence[float]) -> float:
        """One after the other; of measured all-gathers, each as one of as many bytes."""
        fit = self._fit(CommKind.ALL_GATHER.value, group)
        if fit is not None:
            return sum([fit.seconds(bytes=size) for size in sizes])
        hops = self._hops(group)
        start = max(self._hop_s(*hop, 0.0, 1.0) for hop in hops)
        each = [max(self._hop_s(*hop, size, 1.0) for hop in hops) for size in sizes]
        return sum(each) + (ceil(log2(max(len(group), 2))) - 1) * start * len(each)

    def exchange_s(self, group: Sequence[int], volumes: Volumes, kind: CommKind) -> float:
        """Every member its pieces to every other: the longest of what a rank or a NIC has to carry."""
        moved = {pair: size for pair, size in volumes.items() if pair[0] != pair[1] and size}
        if not moved:
            return 0.0
        fit = self._fit(kind.value, tuple(group))
        if fit is not None:
            return fit.seconds(bytes=max(_per_end(moved)))
        loads: dict[tuple[str, int], float] = {}
        start = 0.0
        for (sender, receiver), size in moved.items():
            link = self.path(sender, receiver)
            start = max(start, link.latency)
            wire = link.seconds(size) - link.seconds(0)
            for end in (("out", sender), ("in", receiver)):
                loads[end] = loads.get(end, 0.0) + wire
        for (direction, node), size in self._node_loads(moved).items():
            loads[f"nic {direction}", node] = size / self._nic(node).bandwidth
        return start + max(loads.values())

    def messages_s(self, volumes: Volumes) -> dict[tuple[int, int], float]:
        """Messages that go at once: each its own time, or that of all that shares one of its NICs."""
        nodes = self._node_loads(volumes)
        found = {}
        for (sender, receiver), size in volumes.items():
            own = self.message_s(sender, receiver, size)
            if self.shares_nic(sender, receiver):
                ends = (("out", self.slots[sender].node), ("in", self.slots[receiver].node))
                shared = max(nodes[end] / self._nic(end[1]).bandwidth for end in ends)
                own = max(own, self.path(sender, receiver).latency + shared)
            found[sender, receiver] = own
        return found

    def message_s(self, sender: int, receiver: int, size_bytes: float) -> float:
        """One message alone, as measured through our runtime where it was."""
        link = self.path(sender, receiver)
        calibration = self.cluster.calibration
        if calibration is not None:
            names = (str(link.kind) if link.kind else "", "send")
            fit = next((calibration.exchange[name] for name in names if name in calibration.exchange), None)
            if fit is not None:
                return fit.seconds(bytes=size_bytes)
        return link.seconds(size_bytes)

    def path(self, first: int, second: int) -> LinkSpec:
        """The link of two ranks, which `missing_links` has found to be there."""
        key = (self.slots[first], self.slots[second])
        if key not in self._paths:
            self._paths[key] = self.cluster.path(*key)
        link = self._paths[key]
        assert link is not None, "links are checked before prices are asked for"
        return link

    def shares_nic(self, first: int, second: int) -> bool:
        """Whether their messages go through NICs."""
        return self.cluster.shares_nic(self.slots[first], self.slots[second])

    def wire_bandwidth(self, first: int, second: int) -> float:
        """Bytes per second that two nodes exchange in one direction at most, or two devices of a node."""
        own = self.path(first, second).bandwidth
        nics = [self.cluster.nodes[self.slots[rank].node].nic for rank in (first, second)]
        known = [nic.bandwidth for nic in nics if nic is not None]
        return min(known) if known and self.shares_nic(first, second) else own

    def link_name(self, first: int, second: int) -> str:
        """What people call the link of two ranks: `inside node-a`, or `node-a - node-b`."""
        low, high = sorted((self.slots[first].node, self.slots[second].node))
        names = [self.cluster.nodes[node].address for node in (low, high)]
        return f"inside {names[0]}" if low == high else f"{names[0]} - {names[1]}"

    def _hops(self, group: tuple[int, ...]) -> list[tuple[int, int]]:
        """A ring that visits node after node."""
        order = sorted(group, key=lambda rank: (*self.slots[rank], rank))
        return list(dict.fromkeys(zip(order, (*order[1:], order[0]), strict=True)))

    def ring_volumes(self, group: Sequence[int], size_bytes: float) -> dict[tuple[int, int], float]:
        """What an all-reduce moves over each hop of its ring."""
        share = 2 * (len(group) - 1) / len(group) * size_bytes if group else 0.0
        return dict.fromkeys(self._hops(tuple(group)), share) if len(group) > 1 else {}

    def _hop_s(self, first: int, second: int, size_bytes: float, rings: float) -> float:
        link = self.path(first, second)
        own = link.seconds(size_bytes)
        if rings <= 1 or not self.shares_nic(first, second):
            return own
        nodes = {self.slots[first].node, self.slots[second].node}
        return max(own, link.latency + max(rings * size_bytes / self._nic(n).bandwidth for n in nodes))

    def _nic(self, node: int) -> LinkSpec:
        """The NIC of a node; where none is told its best link to other nodes, which its ranks share too."""
        spec = self.cluster.nodes[node]
        if spec.nic is not None:
            return spec.nic
        others = (slot for slot in dict.fromkeys(self.slots.values()) if slot.node != node)
        own = NodeSlot(node, 0)
        links = [link for link in (self.cluster.path(own, other) for other in others) if link is not None]
        return max(links, key=lambda link: link.bandwidth)

    def _node_loads(self, volumes: Volumes) -> dict[tuple[str, int], float]:
        """Bytes that leave and enter each node through its NIC."""
        loads: dict[tuple[str, int], float] = {}
        for (sender, receiver), size in volumes.items():
            if self.shares_nic(sender, receiver):
                for end in (("out", self.slots[sender].node), ("in", self.slots[receiver].node)):
                    loads[end] = loads.get(end, 0.0) + size
        return loads

    def _nic_loads(self, traffic: Traffic) -> dict[int, float]:
        volumes: Volumes = traffic.volumes
        if traffic.kind is CommKind.ALL_REDUCE:
            volumes = self.ring_volumes(traffic.ranks, traffic.size)
        loads: dict[int, float] = {}
        for (_, node), size in self._node_loads(volumes).items():
            loads[node] = max(loads.get(node, 0.0), size)
        return loads

    def _fit(self, kind: str, group: tuple[int, ...]) -> Fit | None:
        """What was measured of such a collective; of another number of members, as a ring scales with it."""
        calibration = self.cluster.calibration
        if calibration is None or not calibration.collectives:
            return None
        place = ONE_NODE if len({self.slots[rank].node for rank in group}) == 1 else ACROSS
        found = {}
        for name, fit in calibration.collectives.items():
            of, members, where = name.split(":")
            if of == kind and where == place:
                found[int(members)] = fit
        if not found:
            return None
        count = len(group)
        near = min(found, key=lambda members: (abs(members - count), members))
        if near == count:
            return found[near]
        fit, bytes_share = found[near], 1.0  # of an exchange what a member sends is counted already
        if kind in (CommKind.ALL_REDUCE.value, GRADIENT):
            bytes_share = ((count - 1) / count) / ((near - 1) / near)
        return Fit(
            fit.fixed_s * (count - 1) / (near - 1), 0.0, fit.per_byte_s * bytes_share, fit.spread, fit.busy
        )


def _per_end(volumes: Volumes) -> Iterable[float]:
    """Bytes that each rank sends, and receives."""
    ends: dict[tuple[str, int], float] = {}
    for (sender, receiver), size in volumes.items():
        for end in (("out", sender), ("in", receiver)):
            ends[end] = ends.get(end, 0.0) + size
    return ends.values()
