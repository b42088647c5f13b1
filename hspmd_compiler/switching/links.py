"""What a byte costs between world ranks, as far as a switch tells links apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..cluster.cluster import ClusterSpec, NodeSlot
from ..cluster.launch_plan import bind_ranks

NEAR_S = NIC_S = 1 / 25e9
"""Seconds a byte where no figure is told: all bytes count alike then."""


@dataclass(frozen=True, slots=True)
class SwitchLinks:
    """nodes: the node of each world rank. Seconds a byte: near_s, by node: from one rank to others of its
    node; far_s: from one rank to other nodes; nic_s, by node: from all its ranks, or to them, over its NIC.
    is_told: False where a figure is assumed, so that seconds mean nothing.
    """

    nodes: tuple[int, ...]
    near_s: tuple[float, ...]
    far_s: float
    nic_s: tuple[float, ...]
    is_told: bool = True


def links_of(cluster: ClusterSpec | None, devices: Sequence[int]) -> SwitchLinks:
    """Of world ranks on these devices of a cluster; without one all are on one node."""
    if cluster is None:
        return links_of_nodes((0,) * len(devices))
    slots = bind_ranks(devices, [None] * len(devices), cluster)
    used = {slot.node for slot in slots}
    near = [_near_s(cluster, [slot for slot in slots if slot.node == node]) for node in _numbers(cluster)]
    nic = [_nic_s(cluster, node) for node in _numbers(cluster)]
    return SwitchLinks(
        tuple(slot.node for slot in slots),
        tuple(NEAR_S if each is None else each for each in near),
        0.0 if cluster.link is None else 1 / cluster.link.bandwidth,
        tuple(NIC_S if each is None else each for each in nic),
        all(near[node] is not None and (nic[node] is not None or len(used) == 1) for node in used),
    )


def links_of_nodes(nodes: Sequence[int], shares_nic: bool = True) -> SwitchLinks:
    """Links of nodes of which nothing else is told. shares_nic: False: each rank has a NIC of its own."""
    count = max(nodes, default=-1) + 1
    shared, own = (NIC_S, 0.0) if shares_nic else (0.0, NIC_S)
    return SwitchLinks(tuple(nodes), (NEAR_S,) * count, own, (shared,) * count, is_told=False)


def _numbers(cluster: ClusterSpec) -> range:
    return range(len(cluster.nodes))


def _near_s(cluster: ClusterSpec, slots: Sequence[NodeSlot]) -> float | None:
    """By the slowest link between ranks of one node; one rank alone needs none."""
    paths = [cluster.path(one, other) for one in slots for other in slots if one != other]
    if any(path is None for path in paths):
        return None
    return max((1 / path.bandwidth for path in paths if path is not None), default=0.0)


def _nic_s(cluster: ClusterSpec, node: int) -> float | None:
    """By its NIC, or where none is told by the common link."""
    link = cluster.nodes[node].nic or cluster.link
    return None if link is None else 1 / link.bandwidth
