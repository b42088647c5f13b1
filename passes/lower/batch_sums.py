"""Sums over the batch in the middle of a pass: who takes part, and why nobody waits for ever.

All pipelines come to the same sums in the same order, each with its only micro-batch; what a pipeline
does between two sums concerns itself alone. So all arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...errors import DeduceError
from ...ir.annotated import GATHER, BatchSum, PipelineGraph
from ...ir.graph import LogicalGraph, OriginKind
from ...ir.prune import sources
from ..liveness import LivePipeline
from ..zero.gather_rows import group_of
from .strategy_ranks import StrategyRanks

Met = tuple[BatchSum | str, int]
"""A sum, or parameters that ZeRO gathers from other pipelines, and the stage that comes to it."""


def sum_groups(
    graph: LogicalGraph,
    live: Sequence[LivePipeline],
    pipelines: Sequence[PipelineGraph],
    ranks: StrategyRanks,
) -> dict[BatchSum, tuple[int, ...]]:
    """The ranks that reduce each sum; a DeduceError where pipelines can't meet there."""
    orders = [list(_in_order(pipeline)) for pipeline in live]
    updated = dict.fromkeys(item.buffer for pipeline in pipelines for item in pipeline.buffers)
    rows = list(dict.fromkeys(found.row for order in orders for found in _sums(order)))
    of_batch = [name for name in updated if _depends_on_batch(graph, graph.mutated[name])]
    if rows or of_batch:
        _check_one_micro_batch(graph, rows, of_batch, ranks)
    if rows and any([found for found, _ in order] != [found for found, _ in orders[0]] for order in orders):
        raise _unlike_orders(graph, rows)
    groups: dict[BatchSum, tuple[int, ...]] = {}
    for number, order in enumerate(orders):
        for found, stage in _sums(order).items():
            groups[found] = (*groups.get(found, ()), *ranks.of_stage(number, stage))
    return {found: tuple(sorted(group)) for found, group in groups.items()}


def _sums(order: Sequence[Met]) -> dict[BatchSum, int]:
    return {found: stage for found, stage in order if isinstance(found, BatchSum)}


def _in_order(pipeline: LivePipeline) -> Iterator[Met]:
    """What a pipeline does with others in its only micro-batch: forward through the stages, and back."""
    forward = [(stage, rows.forward) for stage, rows in enumerate(pipeline.stages)]
    backward = [(stage, rows.backward) for stage, rows in enumerate(pipeline.stages)]
    for stage, part in (*forward, *backward[::-1]):
        for row in part:
            if row.marker is not None and row.marker.batch_sum is not None:
                yield row.marker.batch_sum, stage
            elif row.op == GATHER:
                yield str(group_of(row)), stage


def _depends_on_batch(graph: LogicalGraph, row: int) -> bool:
    """Whether a value is another one for every micro-batch; a count of steps is the same for all."""
    kinds = {graph.rows[each].origin.kind for each in sources(graph, row)}
    return not kinds.isdisjoint((OriginKind.INPUT, OriginKind.RANDOM))


def _check_one_micro_batch(
    graph: LogicalGraph, rows: list[int], buffers: list[str], ranks: StrategyRanks
) -> None:
    many = [(number, len(batches)) for number, batches in enumerate(ranks.rows) if len(batches) > 1]
    if not many:
        return
    layers = list(dict.fromkeys(graph.rows[row].module or "the model" for row in rows))
    places = [*rows, *(graph.mutated[name] for name in buffers)]
    details = [("layer", f"{layer}: its statistics are those of the whole batch") for layer in layers]
    details += [("buffer", f"{name}: one new value a step") for name in buffers]
    details += [(f"pipeline {number}", f"{count} micro-batches") for number, count in many]
    raise DeduceError(
        "samples of different micro-batches meet in the middle of the forward pass",
        at=list(dict.fromkeys(graph.rows[row].where for row in places)),
        details=details,
        rule="a layer with statistics of the batch, or a buffer that they update, sees all samples of a step"
        " at once",
        fix="give each pipeline one micro-batch (micro_batches: [n], accumulation 1), or use a layer without"
        " batch statistics (group norm, layer norm)",
    )


def _unlike_orders(graph: LogicalGraph, rows: list[int]) -> DeduceError:
    return DeduceError(
        "pipelines come to the sums over the batch in different orders",
        at=list(dict.fromkeys(graph.rows[row].where for row in rows)),
        rule="layers with statistics of the batch run in one order in all pipelines, or they would wait for"
        " each other for ever",
        fix="cut all pipelines into stages alike, or keep branches with such layers in one stage",
    )
