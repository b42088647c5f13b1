"""The clusters of AMP's trials as its README tells them, and where its ranks lie on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hspmd_compiler.cluster.cluster import LinkSpec
from hspmd_compiler.errors import EstimateError
from truth.json_file import read_json

GIGABIT = 1e9 / 8
NETWORK_LATENCY_S = 20e-6
"""Of a message between nodes on a cloud's Ethernet: what such networks are commonly measured at."""
INNER_LATENCY_S = 5e-6
RANKS_PER_NODE = 4


@dataclass(frozen=True, slots=True)
class Node:
    """Four devices. kind: AMP's name in its cost vectors. nic, inner: bytes per second of node and device."""

    kind: str
    usable_bytes: float
    nic: float
    inner: float


V100 = Node("P3", 16e9, 10 * GIGABIT, 170 * GIGABIT)
T4 = Node("G4", 15e9, 50 * GIGABIT, 50 * GIGABIT)
"""15 of its 16 GB are usable: error correction is on."""

CLUSTERS: Mapping[str, tuple[Node, ...]] = {
    "homogeneous": (T4, T4, T4, T4),
    "het_cluster": (V100, V100, V100, T4),
}


@dataclass(frozen=True, slots=True)
class AmpCluster:
    """Nodes, and forward seconds per layer at micro-batch 1 by kind and degree."""

    nodes: tuple[Node, ...]
    forward: Mapping[tuple[str, int], tuple[float, ...]]

    def node_of(self, rank: int) -> int:
        return rank // RANKS_PER_NODE

    def link(self, one: int, other: int, sharing: int) -> LinkSpec:
        """Between two nodes, of so many messages that leave a node at once; inside one: a device's own."""
        if one == other:
            return LinkSpec(bandwidth=self.nodes[one].inner, latency=INNER_LATENCY_S)
        slower = min(self.nodes[one].nic, self.nodes[other].nic)
        return LinkSpec(bandwidth=slower / sharing, latency=NETWORK_LATENCY_S)


def read_cluster(planners: Path, name: str) -> AmpCluster:
    """One of AMP's clusters with the GPT-2 vectors of its devices."""
    if name not in CLUSTERS:
        raise EstimateError(f"no cluster {name}; known: {', '.join(CLUSTERS)}")
    costs = read_json(planners / "amp" / "known_cost.json")["known_cost"]
    forward = {
        (kind, int(degree)): tuple(float(one) for one in vector)
        for model, kind, degree, vector in ((*key.split("_"), vector) for key, vector in costs.items())
        if model == "gpt2"
    }
    return AmpCluster(CLUSTERS[name], forward)
