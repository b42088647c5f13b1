"""In which form tokens come to experts, where a strategy names none: the one whose exchanges cost less.

Both forms are laid out, and what moves inside of stages is priced, of each micro-batch: rows that go where a
step decides by an even load over experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from ...base.by_key import by_key
from ...base.comm_plan import CommKind, CommStep, CostModel, Counted, Traffic
from ...ir.annotated import COMM, AnnotatedRow, CommMarker
from ...ir.graph import LogicalGraph
from ...ir.type_text import dtype_name
from ...layout.layout import Coordinate
from ...program.context.prices import step_volumes
from ...strategy.strategy import ExpertForm, Strategy
from ..compile_state import Deduced, Traced
from ..pipeline import laying_out
from ..resolve_comm import CommResolver


def with_expert_form(graph: LogicalGraph, strategy: Strategy, cost: CostModel | None) -> Strategy:
    """The strategy with the cheaper form, if it leaves that open and shares out experts."""
    stages = [stage for pipeline in strategy.pipelines for stage in pipeline.stages]
    is_open = strategy.expert_form is None and not (strategy.sizes or strategy.context)
    if cost is None or not is_open or all(stage.experts is None or stage.tp == 1 for stage in stages):
        return strategy
    seconds = {form: form_s(graph, strategy, form, cost) for form in ExpertForm}
    return replace(strategy, expert_form=min(seconds, key=lambda form: seconds[form]))


def form_s(graph: LogicalGraph, strategy: Strategy, form: ExpertForm, cost: CostModel) -> float:
    """Seconds of all exchanges inside of stages in a form."""
    state = laying_out(replace(strategy, expert_form=form), cost).run(Traced(graph))
    resolver = CommResolver(cost)
    return sum(_exchange_s(state, resolver, cost, *each) for each in _exchanges(state))


def _exchanges(state: Deduced) -> Iterator[tuple[int, AnnotatedRow, CommMarker]]:
    for number, pipeline in enumerate(state.pipelines):
        for row in pipeline.rows:
            marker = row.marker
            inside = marker is not None and marker.source_stage == marker.target_stage
            if row.op == COMM and inside and marker is not None and marker.batch_sum is None:
                yield number, row, marker


def _exchange_s(
    state: Deduced,
    resolver: CommResolver,
    cost: CostModel,
    pipeline: int,
    row: AnnotatedRow,
    marker: CommMarker,
) -> float:
    """Of all micro-batches of a pipeline, each like its first."""
    ranks, dtype = state.ranks.of_stage(pipeline, row.stage), dtype_name(row.out.dtype)
    batch, count = state.ranks.first_coordinate(pipeline), len(state.ranks.rows[pipeline])
    rounds: Sequence[dict[int, CommStep]] = (
        resolver.steps(marker, ranks, batch, dtype)
        if marker.counted is Counted.NO
        else [resolver.counted(marker, ranks, batch, dtype)]
    )
    size = prod(marker.source.local_shape(Coordinate(0, batch))) * row.out.dtype.itemsize
    return count * sum(cost.comm_s(list(_traffic(steps, size))) for steps in rounds)


def _traffic(steps: dict[int, CommStep], size: int) -> Iterator[Traffic]:
    """What goes on at once. size: bytes that a rank reduces."""
    for members in by_key((step.id, (rank, step)) for rank, step in steps.items()).values():
        step = members[0][1]
        if step.kind is CommKind.ALL_REDUCE:
            yield Traffic(step.kind, step.group, {}, size)
        else:
            yield Traffic(step.kind, step.group, step_volumes(dict(members)))
