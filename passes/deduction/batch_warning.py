"""Tells, once per compile, what values of the whole batch cost that activations decide."""

from __future__ import annotations

from collections.abc import Sequence

from ...base.log import logger
from ...ir.annotated import PipelineGraph
from ...ir.graph import LogicalGraph
from ...strategy.strategy import Strategy
from .computed_whole import size


def warn_of_batch_values(graph: LogicalGraph, strategy: Strategy, pipelines: Sequence[PipelineGraph]) -> None:
    """One warning with the first line that needs such a value; none without."""
    rows = [row for pipeline in pipelines for row in pipeline.batch_values]
    if not rows:
        return
    moved = max(sum(pipeline.batch_values.values()) for pipeline in pipelines)
    many = strategy.accumulation > 1 or any(len(each.micro_batches) > 1 for each in strategy.pipelines)
    logger.warning("%s", warning(moved, many, graph.rows[min(rows)].where))


def warning(moved: int, many: bool, where: str) -> str:
    """The text. many: whether some pipeline has several micro-batches."""
    waits = "all pipelines wait for each other in the middle of a step"
    keeps = ", and all micro-batches run forward before the first runs backward" if many else ""
    return (
        f"samples of the whole batch meet: {waits}{keeps}; {size(moved)} reduced per step; first at {where}"
    )
