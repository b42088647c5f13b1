"""Where Hydraulis puts pipelines: a stage on one node or on whole ones, stage after stage on other nodes."""

from __future__ import annotations

from collections.abc import Sequence

NODE = 8  # GPUs of a node of the published clusters


def place(shapes: Sequence[tuple[int, int]], gpus: int) -> list[list[list[int]] | None]:
    """The GPUs of every stage of every pipeline, its (tp, pp) given; None for one that finds no room.

    Pipelines are placed in their order. A stage takes the lowest free GPUs of the next node with
    room, counted round from the node of the stage before, and a pipeline begins at the first node
    with room. A stage wider than a node takes the first free nodes.
    """
    free = [list(range(low, min(low + NODE, gpus))) for low in range(0, gpus, NODE)]
    return [_pipeline(free, tp, pp) for tp, pp in shapes]


def _pipeline(free: list[list[int]], tp: int, pp: int) -> list[list[int]] | None:
    stages: list[list[int]] = []
    node = -1
    for _ in range(pp):
        if tp > NODE:
            held = _whole_nodes(free, tp)
        else:
            node = _next_node(free, tp, node)
            held = _take(free, node, tp) if node >= 0 else []
        if not held:
            return None
        stages.append(held)
    return stages


def _next_node(free: list[list[int]], tp: int, last: int) -> int:
    """The first node after `last`, round to `last` itself, that has room; -1 where none has."""
    count = len(free)
    nodes = ((last + step) % count for step in range(1, count + 1))
    return next((node for node in nodes if len(free[node]) >= tp), -1)


def _whole_nodes(free: list[list[int]], tp: int) -> list[int]:
    """The first nodes that are free as a whole, together of `tp` GPUs; empty where there are too few."""
    nodes = [node for node, gpus in enumerate(free) if len(gpus) == NODE][: tp // NODE]
    if tp % NODE or len(nodes) < tp // NODE:
        return []
    return [gpu for node in nodes for gpu in _take(free, node, NODE)]


def _take(free: list[list[int]], node: int, count: int) -> list[int]:
    taken, free[node] = free[node][:count], free[node][count:]
    return taken
