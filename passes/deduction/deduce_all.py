"""Deduces every pipeline of a strategy; pipelines of one structure share one deduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...errors import DeduceError, HspmdError, InternalError
from ...ir.annotated import PipelineGraph
from ...ir.graph import LogicalGraph
from ...ir.own_names import OF_USERS
from ...strategy.strategy import PipelineSpec, Strategy
from .batch_warning import warn_of_batch_values
from .computed_whole import warn_of_whole
from .deducer import Deducer
from .factors import check_gathered
from .gathered_wishes import warn_of_gathered
from .placement import GraphFacts, StartLayouts
from .stages import assign_stages


def deduce_all(
    graph: LogicalGraph,
    strategy: Strategy,
    placements: Sequence[StartLayouts],
    facts: GraphFacts | None = None,
) -> list[PipelineGraph]:
    """One annotated graph per pipeline. Equal pipelines have the same row objects."""
    facts = GraphFacts.of(graph) if facts is None else facts
    by_device = any(item.annotation is not None for item in strategy.overrides)
    by_device |= any(row.op in OF_USERS for row in graph.rows)
    known: dict[object, PipelineGraph] = {}
    result = []
    for number, spec in enumerate(strategy.pipelines):
        key = _structure(spec, by_device)
        if key not in known:
            known[key] = deduce(graph, number, spec, placements[number], facts)
        result.append(replace(known[key], pipeline=number))
    check_gathered(placements[0].factors, result, strategy)
    warn_of_whole(graph, strategy, result)
    warn_of_batch_values(graph, strategy, result)
    warn_of_gathered(graph, result)
    return result


def _structure(spec: PipelineSpec, by_device: bool) -> object:
    """What a deduction depends on; devices only where an annotation names them."""
    stages = tuple((stage.tp, stage.layers, stage.shares) for stage in spec.stages)
    return stages, spec.devices if by_device else (), spec.lanes


def deduce(
    graph: LogicalGraph,
    pipeline: int,
    spec: PipelineSpec,
    placement: StartLayouts,
    facts: GraphFacts | None = None,
) -> PipelineGraph:
    """The annotated graph of one pipeline; DeduceError names the row's user line."""
    facts = GraphFacts.of(graph) if facts is None else facts
    operands, kinds = facts.operands, facts.kinds
    stages = assign_stages(graph, kinds, spec, operands)
    result = PipelineGraph(pipeline)
    deducer = Deducer(graph, spec, placement, result, kinds, stages, operands, graph.rows[0], facts.calls)
    deducer.memo.signatures = facts.signatures
    try:
        return deducer.run()
    except (HspmdError, DeduceError):
        raise
    except (AssertionError, ValueError, TypeError, IndexError, KeyError) as error:
        row = deducer.row
        raise InternalError(
            f"deduction of {row.op} failed: {type(error).__name__}: {error}",
            at=row.where,
            fix="report this model and strategy",
        ) from error
