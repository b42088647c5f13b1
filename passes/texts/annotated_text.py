"""Annotated pipelines as stable text: each value with its groups, states and hetero dim, then its moves."""

from __future__ import annotations

from collections.abc import Sequence

from ...annotations.of_layout import layout_states
from ...base.comm_plan import CostModel
from ...ir.annotated import COMM, AnnotatedRow, AnnotatedValue, PipelineGraph
from ...ir.graph import LogicalGraph, Row
from ...ir.printer import aligned
from ...layout.layout import Axis, Layout
from ...program.sized.counted_step import NOTES
from ...strategy.strategy import Strategy
from ..deduction.placement import first_coordinate
from ..resolve_layouts import WantedLayouts, plan_text
from .cells import line_cell, type_cell


def hetero_text(layout: Layout, pipelines: int) -> str:
    """How the value relates across pipelines and micro-batches."""
    if Axis.BATCH in layout.partial:
        return "partial"
    cut = layout.cut(ranks=False)
    if cut is not None:
        return str(cut[0])
    return "dup" if pipelines > 1 else "none"


def annotated_text(
    graph: LogicalGraph,
    strategy: Strategy,
    pipelines: Sequence[PipelineGraph],
    cost: CostModel | None = None,
) -> str:
    """One line per logical value, communications under the value that needs them.

    cost: of ways of communication; None: as if all ranks were alike.
    """
    lines: list[tuple[str, ...]] = []
    moves = _moves(graph, strategy, pipelines, cost)
    for row in graph.rows:
        lines += moves.get(row.id, [])
        held = [_held(graph, pipeline, row) for pipeline in pipelines]
        if all(value is None for value in held):
            continue
        lines.append(_line(row, strategy, held))
    return "\n".join(aligned(lines)) + "\n"


def _held(graph: LogicalGraph, pipeline: PipelineGraph, row: Row) -> AnnotatedValue | None:
    if row.op != "placeholder":
        return pipeline.logical.get(row.id)
    for (name, _), value in (*pipeline.params.items(), *pipeline.inputs.items()):
        if name == row.origin.name:
            return value
    return None


def _line(row: Row, strategy: Strategy, held: Sequence[AnnotatedValue | None]) -> tuple[str, ...]:
    first = next(value for value in held if value is not None)
    groups, states = [], []
    for pipeline, value in enumerate(held):
        if value is not None:
            devices = strategy.pipelines[pipeline].stages[value.stage].devices
            groups.append(",".join(map(str, devices)))
            states.append(str(layout_states(value.layout, len(devices))))
    name = f"{row.origin.kind.value} {row.origin.name}" if row.op == "placeholder" else row.op
    hetero = hetero_text(first.layout, len(held))
    union = f"[{' | '.join(groups)}]"
    return (
        f"%{row.id}",
        type_cell(first),
        name,
        union,
        f"<{' | '.join(states)}>",
        f"hetero={hetero}",
        line_cell(row.where),
    )


def _moves(
    graph: LogicalGraph,
    strategy: Strategy,
    pipelines: Sequence[PipelineGraph],
    cost: CostModel | None,
) -> dict[int, list[tuple[str, ...]]]:
    """Communication lines by the logical row that first needs them."""
    result: dict[int, list[tuple[str, ...]]] = {}
    for pipeline in pipelines:
        pending: list[AnnotatedRow] = []
        for row in pipeline.rows:
            if row.op == COMM:
                pending.append(row)
            elif row.out.logical is not None and pending:
                known = result.setdefault(row.out.logical, [])
                known += [_move_line(strategy, pipeline.pipeline, move, cost) for move in pending]
                pending = []
    return result


def _move_line(
    strategy: Strategy, pipeline: int, row: AnnotatedRow, cost: CostModel | None
) -> tuple[str, ...]:
    marker = row.marker
    assert marker is not None
    stages = strategy.pipelines[pipeline].stages
    source, target = stages[marker.source_stage].devices, stages[marker.target_stage].devices
    before, after = layout_states(marker.source, len(source)), layout_states(marker.target, len(target))
    groups = ",".join(map(str, source))
    if source != target:
        groups += " -> " + ",".join(map(str, target))
    change = f"{marker.combine.value} {before}" if before == after else f"{before} -> {after}"
    receivers = target if marker.source_stage != marker.target_stage else ()
    plan = NOTES.get(marker.counted, "")
    if not plan and not marker.batch_sum:
        plan = plan_text(_wanted(strategy, pipeline, row, receivers, cost))
    return (
        "  comm",
        type_cell(row.out),
        f"pipeline {pipeline}",
        f"[{groups}]",
        f"<{change}>",
        plan,
        line_cell(row.where),
    )


def _wanted(
    strategy: Strategy,
    pipeline: int,
    row: AnnotatedRow,
    receivers: Sequence[int],
    cost: CostModel | None,
) -> WantedLayouts:
    """What a move brings, in the first micro-batch of the pipeline, from ranks to ranks."""
    marker, number = row.marker, strategy.ranks()
    assert marker is not None
    source = strategy.pipelines[pipeline].stages[marker.source_stage].devices
    batch, dtype = first_coordinate(strategy, pipeline), str(row.out.dtype).removeprefix("torch.")
    ends = [number[device] for device in source], [number[device] for device in receivers]
    return WantedLayouts.of(marker, *ends, batch, dtype, cost)
