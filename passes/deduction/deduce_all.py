"""Deduces every pipeline of a strategy; pipelines of one structure share one deduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...ir.annotated import PipelineGraph
from ...ir.comm_marker import is_marker
from ...ir.graph import LogicalGraph
from ...strategy.strategy import PipelineSpec, Strategy
from .batch_warning import warn_of_batch_values
from .computed_whole import warn_of_whole
from .deduce import deduce
from .placement import GraphFacts, StartLayouts


def deduce_all(
    graph: LogicalGraph,
    strategy: Strategy,
    placements: Sequence[StartLayouts],
    facts: GraphFacts | None = None,
) -> list[PipelineGraph]:
    """One annotated graph per pipeline. Equal pipelines have the same row objects."""
    facts = GraphFacts.of(graph) if facts is None else facts
    by_device = any(item.annotation is not None for item in strategy.overrides)
    by_device |= any(is_marker(row.op) for row in graph.rows)
    known: dict[object, PipelineGraph] = {}
    result = []
    for number, spec in enumerate(strategy.pipelines):
        key = _structure(spec, by_device)
        if key not in known:
            known[key] = deduce(graph, number, spec, placements[number], facts)
        result.append(replace(known[key], pipeline=number))
    warn_of_whole(graph, strategy, result)
    warn_of_batch_values(graph, strategy, result)
    return result


def _structure(spec: PipelineSpec, by_device: bool) -> object:
    """What a deduction depends on; devices only where an annotation names them."""
    stages = tuple((stage.tp, stage.layers, stage.shares) for stage in spec.stages)
    return stages, spec.devices if by_device else ()
