"""Clusters and compiled programs that tests of prices share."""

from __future__ import annotations

from typing import Any

from hspmd_compiler.api import compile
from hspmd_compiler.artifact.store import Artifact
from hspmd_compiler.cluster.cluster import ClusterSpec, DeviceSpec, NodeSpec
from hspmd_compiler.cluster.link import LinkSpec
from hspmd_compiler.strategy.form import strategy_from

GIB = 1 << 30
INSIDE, NIC = LinkSpec(5e10, 1e-6), LinkSpec(1e9, 1e-5)
ONE = [{"stages": [{"devices": [0], "layers": 4}], "micro_batches": [2, 2]}]
TP = [{"stages": [{"devices": [0, 1], "layers": 4}], "micro_batches": [2, 2]}]
TP3 = [{"stages": [{"devices": [0, 1, 2], "layers": 4}], "micro_batches": [2, 1]}]
DP = [
    {"stages": [{"devices": [0], "layers": 4}], "micro_batches": [2, 2]},
    {"stages": [{"devices": [1], "layers": 4}], "micro_batches": [1]},
]
PP = [{"stages": [{"devices": [0], "layers": 2}, {"devices": [1], "layers": 2}], "micro_batches": [1] * 6}]
MIXED = [
    {
        "stages": [{"devices": [0, 1], "layers": 3}, {"devices": [2], "layers": 1}],
        "micro_batches": [4, 4, 2],
    },
    {"stages": [{"devices": [3], "layers": 4}], "micro_batches": [4, 1]},
]


_known: dict[str, Artifact] = {}


def compiled(pipelines: list[Any], precision: str = "model", **more: Any) -> Artifact:
    """`llama-tiny` under a strategy. more: its other keys."""
    key = repr((pipelines, precision, sorted(more.items())))
    if key not in _known:
        strategy = {"pipelines": pipelines, **more}
        _known[key] = compile("llama-tiny", strategy=strategy, precision=precision).artifact
    return _known[key]


def layers_of(artifact: Artifact) -> dict[tuple[int, int], int]:
    """Layers by (pipeline, stage)."""
    pipelines = strategy_from(artifact.strategy).pipelines
    return {
        (number, place): stage.num_layers
        for number, pipeline in enumerate(pipelines)
        for place, stage in enumerate(pipeline.stages)
    }


def device(peak: float = 1e13, memory: int = 16 * GIB, **more: Any) -> DeviceSpec:
    """A device with all figures."""
    return DeviceSpec("cpu", memory=memory, peaks={"float32": peak}, memory_bandwidth=peak / 10, **more)


def cluster(*nodes: list[DeviceSpec], **more: Any) -> ClusterSpec:
    """Nodes called a, b, ... with a NIC each."""
    named = [NodeSpec("abcdefgh"[at], tuple(of), INSIDE, NIC) for at, of in enumerate(nodes)]
    return ClusterSpec(tuple(named), **more)
