"""Data parallelism in HAP's cost: parameters and buffers whole on each device, gradients all-reduced."""

from __future__ import annotations

from .costs import HapMachine
from .operators import HapGraph, Leaf


def replicas_s(graph: HapGraph, machine: HapMachine) -> float:
    """All-reduces of all parameters, norms' weights among them, and of buffers as often as they are read."""
    read = sum(value.elements for value in graph.leaves(Leaf.PARAMETER, Leaf.BUFFER))
    missing = dict(graph.uncounted)
    for value in graph.leaves(Leaf.PARAMETER):
        missing.pop(value.name, None)
    return (read + sum(missing.values())) / machine.bandwidths.all_reduce


def even_s(graph: HapGraph, machine: HapMachine) -> float:
    """DP-EV: each device the same samples; the slowest decides."""
    return graph.flops / (machine.devices * machine.slowest) + replicas_s(graph, machine)


def proportional_s(graph: HapGraph, machine: HapMachine) -> float:
    """DP-CP: samples in proportion to speeds."""
    return graph.flops / machine.total_speed + replicas_s(graph, machine)
