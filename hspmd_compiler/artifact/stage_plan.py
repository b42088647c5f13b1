"""A stage's segments: one set per kind of micro-batch, shared by equal stages of equal pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..annotations.layout import Coordinate
from ..graph.annotated import AnnotatedValue, PerCoordinate, PipelineGraph
from ..passes.liveness import StageRows, operands_of
from .lower_stage import Outputs, StageLowering, by_position
from .program import OutputKind, Segment
from .strategy_ranks import StrategyRanks

Keys = tuple[tuple[object, ...], ...]
EARLY = (OutputKind.LOSS, OutputKind.BUFFER)
Given = tuple[tuple[OutputKind, AnnotatedValue, str], ...]


@dataclass(slots=True)
class StagePlan:
    """A lowered stage. variants: per local micro-batch, which variant of the segments it runs.

    first_of: per variant the batch coordinate that stands for it. segments: forward, backward and
    step segment of each variant.
    """

    pipeline: int
    stage: int
    ranks: tuple[int, ...]
    rows: StageRows
    lowering: StageLowering
    variants: list[int]
    first_of: list[int]
    segments: list[Segment]


@dataclass(slots=True)
class StagePlanner:
    """Makes the plans of all stages. logical_rows: number of rows of the logical graph."""

    pipelines: Sequence[PipelineGraph]
    ranks: StrategyRanks
    logical_rows: int
    known: dict[tuple[int, Keys], StagePlan] = field(default_factory=dict)
    positional: dict[int, list[PerCoordinate]] = field(default_factory=dict)

    def plan(self, pipeline: int, stage: int, rows: StageRows) -> StagePlan:
        """Lower a stage, or take over what an equal stage of an equal pipeline has been lowered to."""
        ranks = self.ranks.of_stage(pipeline, stage)
        variants, first_of, keys = self._variants(pipeline, rows)
        known = self.known.get((id(rows), keys))
        if known is not None:
            return replace(known, pipeline=pipeline, ranks=ranks, variants=variants, first_of=first_of)
        lowering = StageLowering(self.pipelines[pipeline], stage, len(ranks), self.logical_rows, rows)
        plan = StagePlan(pipeline, stage, ranks, rows, lowering, variants, first_of, [])
        for variant, batch in enumerate(first_of):
            lowering.variant = variant
            plan.segments += _segments(plan, self.pipelines[pipeline], batch)
        self.known[id(rows), keys] = plan
        return plan

    def _variants(self, pipeline: int, rows: StageRows) -> tuple[list[int], list[int], Keys]:
        """Micro-batches that run the same segments, the batch coordinate that stands for each, their keys."""
        if id(rows) not in self.positional:
            self.positional[id(rows)] = by_position(rows)
        positional = self.positional[id(rows)]
        offset = self.ranks.first_coordinate(pipeline)
        numbers: dict[tuple[object, ...], int] = {}
        variants: list[int] = []
        first_of: list[int] = []
        for index, (low, high) in enumerate(self.ranks.rows[pipeline]):
            at = Coordinate(0, offset + index)
            key = (high - low, *(literal.at(at) for literal in positional))
            if key not in numbers:
                numbers[key] = len(first_of)
                first_of.append(offset + index)
            variants.append(numbers[key])
        return variants, first_of, tuple(numbers)


def _segments(plan: StagePlan, graph: PipelineGraph, batch: int) -> list[Segment]:
    """The forward, backward and step segment of one variant."""
    rows = plan.rows
    early, late = _given(graph, plan.stage, rows)
    forward_made = {row.out.id: row.out for row in rows.forward}
    backward_made = {row.out.id: row.out for row in rows.backward}
    sent = {crossing.source.id for crossing in rows.departures}
    read = {value.id for row in rows.backward for value in operands_of(row)}
    read |= {value.id for _, value, _ in late}
    wanted = sent | read
    kept = tuple(value for number, value in forward_made.items() if number in wanted)
    leaving = tuple(value for number, value in backward_made.items() if number in sent)
    number = f"{plan.first_of.index(batch)}"
    return [
        plan.lowering.segment(f"forward.{number}", rows.forward, Outputs(kept, early), batch),
        plan.lowering.segment(f"backward.{number}", rows.backward, Outputs(leaving, late), batch),
        _step_segment(plan, number, batch),
    ]


def _step_segment(plan: StagePlan, number: str, batch: int) -> Segment:
    needed = {row.out.id: row for step in plan.rows.steps for row in step.rows}
    rows = list(needed.values())  # those of each count are in order, and read no others
    special = tuple((OutputKind.STEP, step.share, "") for step in plan.rows.steps)
    return plan.lowering.segment(f"step.{number}", rows, Outputs((), special), batch)


def _given(graph: PipelineGraph, stage: int, rows: StageRows) -> tuple[Given, Given]:
    """Gradients, loss and new values of buffers that a stage gives, by the segment that has them first."""
    gives = [(OutputKind.GRAD, term.value, term.param) for term in graph.grads if term.stage == stage]
    if graph.loss is not None and graph.loss.stage == stage:
        gives.insert(0, (OutputKind.LOSS, graph.loss, ""))
    gives += [(OutputKind.BUFFER, item.value, item.buffer) for item in graph.buffers if item.stage == stage]
    backward = {row.out.id for row in rows.backward}
    early = tuple(give for give in gives if give[1].id not in backward and give[0] in EARLY)
    return early, tuple(give for give in gives if give not in early)
