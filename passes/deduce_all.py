"""Deduces every pipeline of a strategy; pipelines of one structure share one deduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import DeduceError
from ..graph.annotated import PipelineGraph
from ..graph.comm_marker import is_marker
from ..graph.ir import LogicalGraph
from ..log import task
from ..strategy import PipelineSpec, Strategy
from .deduce import deduce
from .placement import GraphFacts, Placement


def deduce_all(
    graph: LogicalGraph, strategy: Strategy, placements: Sequence[Placement]
) -> list[PipelineGraph]:
    """One annotated graph per pipeline. Equal pipelines have the same row objects."""
    _refuse_updated_buffers(graph)
    facts = GraphFacts.of(graph)
    by_device = any(item.annotation is not None for item in strategy.overrides)
    by_device |= any(is_marker(row.op) for row in graph.rows)
    known: dict[object, PipelineGraph] = {}
    result = []
    with task("deduce", len(placements)) as progress:
        for number, spec in enumerate(strategy.pipelines):
            key = _structure(spec, by_device)
            if key not in known:
                known[key] = deduce(graph, number, spec, placements[number], facts)
            result.append(replace(known[key], pipeline=number))
            progress.advance()
    return result


def _structure(spec: PipelineSpec, by_device: bool) -> object:
    """What a deduction depends on; devices only where an annotation names them."""
    stages = tuple((stage.tp, stage.layers, stage.shares) for stage in spec.stages)
    return stages, spec.devices if by_device else ()


def _refuse_updated_buffers(graph: LogicalGraph) -> None:
    """A buffer that the forward updates would stay as it was: said, not done silently."""
    if graph.mutated:
        raise DeduceError(
            "the model updates buffers in its forward",
            at=[graph.rows[row].where for row in graph.mutated.values()],
            details=[("buffer", name) for name in graph.mutated],
            rule="a step changes parameters alone; running statistics are not kept yet",
            fix="use a layer without running statistics (layer norm, group norm, track_running_stats=False)",
        )
