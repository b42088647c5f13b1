"""Processors of nodes that CPU ranks share, and how much longer ranks take that compute at once."""

from __future__ import annotations

from collections.abc import Mapping

from ...base.devices import DeviceKind
from ...cluster.cluster import ClusterSpec, NodeSlot
from ..compute import DeviceRates
from ..semantics import Hosts, Slowed


def hosts_of(cluster: ClusterSpec, slots: Mapping[int, NodeSlot], rates: Mapping[int, DeviceRates]) -> Hosts:
    """Nodes whose CPU ranks are more than their processors, or slow each other, as a calibration says.

    A paced rank needs its part of a processor only, and slows nobody where there are enough.
    """
    needs: dict[int, float] = {}
    of: dict[int, int] = {}
    slowed: dict[int, Slowed] = {}
    for rank, rate in rates.items():
        node = slots[rank].node
        if rate.family == DeviceKind.CPU and cluster.nodes[node].cores is not None:
            needs[node] = needs.get(node, 0.0) + 1 / rate.device.pace
            of[rank] = node
            if rate.calibration is not None and rate.calibration.at_once:
                slowed[node] = rate.calibration.slowdown
    cores = {node: cluster.nodes[node].cores or 1 for node in needs}
    crowded = {node for node, need in needs.items() if need > cores[node]}
    shared = {
        rank: node
        for rank, node in of.items()
        if node in crowded or (node in slowed and rates[rank].device.pace == 1)
    }
    return Hosts(shared, cores, slowed)


def stretches(
    cluster: ClusterSpec, slots: Mapping[int, NodeSlot], rates: Mapping[int, DeviceRates]
) -> dict[int, float]:
    """The closed form: how many times longer each rank computes if all of its node always compute at once.

    Never shorter than simulated, for what ranks compute; longer by as much as some wait while others compute.
    """
    hosts = hosts_of(cluster, slots, rates)
    needs: dict[int, float] = {}
    counts: dict[int, int] = {}
    for rank, node in hosts.of.items():
        needs[node] = needs.get(node, 0.0) + 1 / rates[rank].device.pace
        counts[node] = counts.get(node, 0) + 1
    found = dict.fromkeys(rates, 1.0)
    for rank, node in hosts.of.items():
        slowed = hosts.slowed.get(node)
        factor = 1.0 if slowed is None else slowed(counts[node])
        found[rank] = factor * max(1.0, needs[node] / hosts.cores[node])
    return found
