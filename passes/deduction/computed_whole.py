"""Tells, once for each operator without a rule, what computing it whole on every rank costs."""

from __future__ import annotations

from collections.abc import Sequence

from ...base.log import logger
from ...ir.annotated import PipelineGraph
from ...ir.graph import LogicalGraph
from ...strategy.strategy import Strategy

KILOBYTE = 1000
UNITS = ("bytes", "kB", "MB", "GB", "TB")


def warn_of_whole(graph: LogicalGraph, strategy: Strategy, pipelines: Sequence[PipelineGraph]) -> None:
    """A warning per operator that ranks of a stage all compute: where it is first met, bytes per step."""
    gathered: dict[str, int] = {}
    first: dict[str, str] = {}
    for pipeline in pipelines:
        micro_batches = len(strategy.pipelines[pipeline.pipeline].micro_batches) * strategy.accumulation
        for row, count in pipeline.computed_whole.items():
            op = graph.rows[row].op
            first.setdefault(op, graph.rows[row].where)
            gathered[op] = gathered.get(op, 0) + count * micro_batches
    for op, count in gathered.items():
        logger.warning("%s", warning(op, count, first[op]))


def warning(op: str, gathered: int, where: str) -> str:
    """The text for one operator."""
    cost = f"{size(gathered)} gathered by each rank per step" if gathered else "nothing is gathered for it"
    return f"{op} has no rule: every rank of its stage computes it whole, {cost}; first at {where}"


def size(count: int) -> str:
    """Bytes for people."""
    power = 0
    while count >= KILOBYTE ** (power + 1) and power < len(UNITS) - 1:
        power += 1
    return f"{count / KILOBYTE**power:.3g} {UNITS[power]}"
