"""How a stage's rows fall into segments: one set per kind of micro-batch, shared by equal stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..ir.annotated import AnnotatedRow, AnnotatedValue, PerCoordinate, PipelineGraph
from ..ir.graph import Phase
from ..layout.layout import Axis, Coordinate, Factor
from ..program.program import OutputKind
from .batch_levels import BatchLevels, PassLevel
from .compile_state import Segmented, Synced, grown
from .gradients.waves import StageWaves, Waves
from .liveness import StageRows, StepValue
from .lower.strategy_ranks import StrategyRanks
from .lower.weight_rows import weight_rows
from .pass_chain import Pass
from .texts.cells import Line, joined, value_cells

Keys = tuple[tuple[object, ...], ...]
EARLY = (OutputKind.LOSS, OutputKind.BUFFER)
Given = tuple[tuple[OutputKind, AnnotatedValue, str], ...]


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a segment has to give: values kept for later, and gradients, the loss or step shares."""

    micro: tuple[AnnotatedValue, ...] = ()
    special: Given = ()


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """What one segment computes, for the micro-batches of one variant."""

    name: str
    variant: int
    rows: Sequence[AnnotatedRow]
    outputs: Outputs


@dataclass(slots=True)
class StagePlan:
    """A stage. variants: per local micro-batch, which variant of the segments it runs.

    first_of: per variant the batch coordinate that stands for it. waves: where gradients start to be summed;
    the last level of backward is cut there, and each further piece of it counts as a level of its own. parts:
    the segments that each variant has, in order: of forward and backward passes by level, and of step values
    by round. segments: those of the first variant, then of the next; one list for stages that do the same.
    weights: values of the backward pass that are made in a segment of their own, behind it; then there are no
    waves.
    """

    pipeline: int
    stage: int
    ranks: tuple[int, ...]
    rows: StageRows
    levels: BatchLevels
    variants: list[int]
    first_of: list[int]
    waves: StageWaves
    weights: frozenset[int] = frozenset()
    parts: list[PassLevel | int] = field(default_factory=list)
    segments: list[SegmentPlan] = field(default_factory=list)
    _by_part: dict[PassLevel, list[AnnotatedRow]] = field(default_factory=dict)

    @property
    def pieces(self) -> list[PassLevel]:
        """The pieces of the last level of backward, in order."""
        last = self.levels.last
        return [(Phase.BACKWARD, last + piece) for piece in range(len(self.waves.cuts) + 1)]

    def segment_of(self, part: PassLevel | int, mb: int) -> int | None:
        """The number of a local micro-batch's segment; None where a stage has nothing to do in that part."""
        if part not in self.parts:
            return None
        return self.variants[mb] * len(self.parts) + self.parts.index(part)

    def rows_of(self, part: PassLevel) -> list[AnnotatedRow]:
        """The rows of a part of the passes, in order."""
        is_split = self.levels.last or self.weights or (self.waves.cuts and part[0] is Phase.BACKWARD)
        if not is_split:
            return self.rows.forward if part[0] is Phase.FORWARD else self.rows.backward
        if not self._by_part:
            for rows in (self.rows.forward, self.rows.backward):
                for number, row in enumerate(rows):
                    self._by_part.setdefault(self._part_of(row, number), []).append(row)
        return self._by_part.get(part, [])

    def _part_of(self, row: AnnotatedRow, number: int) -> PassLevel:
        """The part of a row, the one of this number in its pass."""
        if row.out.id in self.weights:
            return self.weights_part
        part = self.levels.part(self.rows, row)
        is_cut = part == (Phase.BACKWARD, self.levels.last)
        return (part[0], part[1] + self.waves.piece_of(number)) if is_cut else part

    @property
    def weights_part(self) -> PassLevel:
        """That of gradients of weights that run apart."""
        return Phase.BACKWARD, self.levels.last + 1

    def made_in(self) -> dict[int, PassLevel]:
        """By value, the part that makes it."""
        passes = [part for part in self.parts if not isinstance(part, int)]
        return {row.out.id: part for part in passes for row in self.rows_of(part)}

    def sums_of(self, part: PassLevel) -> list[StepValue]:
        """The sums over the batch whose shares a part makes."""
        made = {row.out.id for row in self.rows_of(part)} if self.rows.sums else set()
        return [item for item in self.rows.sums if item.share.id in made]


@dataclass(slots=True)
class StagePlanner:
    """Makes the plans of all stages."""

    pipelines: Sequence[PipelineGraph]
    ranks: StrategyRanks
    levels: BatchLevels
    waves: Waves
    known: dict[tuple[int, Keys, bool], StagePlan] = field(default_factory=dict)
    positional: dict[int, list[PerCoordinate]] = field(default_factory=dict)
    cuts: dict[int, list[Factor]] = field(default_factory=dict)

    def plan(self, pipeline: int, stage: int, rows: StageRows) -> StagePlan:
        """Plan a stage, or take over the plan of an equal stage of an equal pipeline."""
        ranks = self.ranks.of_stage(pipeline, stage)
        variants, first_of, keys = self._variants(pipeline, rows, len(ranks))
        splits = self.ranks.strategy.splits_backward(pipeline, stage)
        known = self.known.get((id(rows), keys, splits))
        if known is not None:
            return replace(known, pipeline=pipeline, ranks=ranks, variants=variants, first_of=first_of)
        waves = self.waves.at(pipeline, stage)
        plan = StagePlan(pipeline, stage, ranks, rows, self.levels, variants, first_of, waves)
        plan.weights = weight_rows(rows, self.levels) if splits else frozenset()
        plan.parts = _parts(plan)
        for variant in range(len(first_of)):
            plan.segments += _segments(plan, self.pipelines[pipeline], variant)
        self.known[id(rows), keys, splits] = plan
        return plan

    def _variants(
        self, pipeline: int, rows: StageRows, stage_ranks: int
    ) -> tuple[list[int], list[int], Keys]:
        """Micro-batches that run the same segments, the batch coordinate that stands for each, their keys."""
        if id(rows) not in self.positional:
            self.positional[id(rows)] = by_position(rows)
            self.cuts[id(rows)] = sample_cuts(rows)
        positional, cuts = self.positional[id(rows)], self.cuts[id(rows)]
        offset = self.ranks.first_coordinate(pipeline)
        apart = any(factor.by_rank is not None for factor in cuts)  # else ranks agree on what is alike
        numbers: dict[tuple[object, ...], int] = {}
        variants: list[int] = []
        first_of: list[int] = []
        for index, (low, high) in enumerate(self.ranks.rows[pipeline]):
            batch = offset + index
            held = (factor.samples(batch) for factor in cuts)
            places = [Coordinate(rank, batch) for rank in range(stage_ranks if apart else 1)]
            key = (high - low, *held, *(literal.at(each) for literal in positional for each in places))
            if key not in numbers:
                numbers[key] = len(first_of)
                first_of.append(offset + index)
            variants.append(numbers[key])
        return variants, first_of, tuple(numbers)


def sample_cuts(rows: StageRows) -> list[Factor]:
    """How micro-batches cut values; of a slice over samples, those of one size may hold unlike pieces."""
    layouts = dict.fromkeys(value.layout for row in _every(rows) for value in (row.out, *row.reads))
    factors = (factor for layout in layouts for factor in layout.factors())
    return list(dict.fromkeys(factor for factor in factors if factor.axis is Axis.BATCH))


def by_position(rows: StageRows) -> list[PerCoordinate]:
    """Literals that differ between micro-batches of one size."""
    found: list[PerCoordinate] = []
    for row in _every(rows):
        _collect_literals(row.args, found)
    return [literal for literal in found if literal.by_position]


def _every(rows: StageRows) -> list[AnnotatedRow]:
    return [*rows.forward, *rows.backward, *(row for step in rows.steps for row in step.rows)]


def _collect_literals(values: Sequence[object], found: list[PerCoordinate]) -> None:
    for value in values:
        if type(value) is PerCoordinate:
            found.append(value)
        elif isinstance(value, (tuple, list)):
            _collect_literals(value, found)


def _parts(plan: StagePlan) -> list[PassLevel | int]:
    """What a stage has to do: the first forward and backward pass always, others if they have rows."""
    levels, first = plan.levels, {(Phase.FORWARD, 0), (Phase.BACKWARD, plan.levels.turn)}
    found: list[PassLevel | int] = []
    ends = ((Phase.FORWARD, levels.turn), (Phase.BACKWARD, levels.last + len(plan.waves.cuts)))
    for phase, every in ((phase, range(end + 1)) for phase, end in ends):
        found += [part for at in every if (part := (phase, at)) in first or plan.rows_of(part)]
    found += [plan.weights_part] if plan.weights else []
    rounds = {levels.rounds[step.key] for step in plan.rows.steps} | {0}
    return [*found, *sorted(rounds)]


def _segments(plan: StagePlan, graph: PipelineGraph, variant: int) -> list[SegmentPlan]:
    """The segments of one variant: what each part keeps is what others read, or another stage."""
    given = _given(graph, plan)
    passes = [part for part in plan.parts if not isinstance(part, int)]
    rows_of = {part: plan.rows_of(part) for part in passes}
    sent = {crossing.source.id for crossing in plan.rows.departures}
    read = {part: {value.id for row in rows_of[part] for value in row.reads} for part in passes}
    for part in passes:
        read[part] |= {value.id for _, value, _ in given[part]}
    segments = []
    for part in passes:
        wanted = sent.union(*(read[other] for other in passes if other != part))
        kept = tuple(row.out for row in rows_of[part] if row.out.id in wanted)
        sums = tuple((OutputKind.STEP, item.share, "") for item in plan.sums_of(part))
        outputs = Outputs(kept, (*given[part], *sums))
        segments.append(SegmentPlan(_name(part, plan, variant), variant, rows_of[part], outputs))
    rounds = [part for part in plan.parts if isinstance(part, int)]
    return [*segments, *(_step_segment(plan, variant, at) for at in rounds)]


def _name(part: PassLevel, plan: StagePlan, variant: int) -> str:
    """`forward.0` of variant 0; where a pass has levels, or pieces, `backward.0.1`; `weights.0` of what runs
    apart."""
    if plan.weights and part == plan.weights_part:
        return f"weights.{variant}"
    name = "forward" if part[0] is Phase.FORWARD else "backward"
    is_cut = plan.waves.cuts and part[0] is Phase.BACKWARD
    return f"{name}.{variant}.{part[1]}" if plan.levels.last or is_cut else f"{name}.{variant}"


def _step_segment(plan: StagePlan, variant: int, at: int) -> SegmentPlan:
    """The shares of one round of step values, made of inputs and of what was reduced before."""
    steps = [step for step in plan.rows.steps if plan.levels.rounds[step.key] == at]
    needed = {row.out.id: row for step in steps for row in step.rows}
    rows = list(needed.values())  # those of each count are in order, and read no others
    special = tuple((OutputKind.STEP, step.share, "") for step in steps)
    name = f"step.{variant}.{at}" if at else f"step.{variant}"
    return SegmentPlan(name, variant, rows, Outputs((), special))


def _given(graph: PipelineGraph, plan: StagePlan) -> dict[PassLevel, Given]:
    """Gradients, loss and new values of buffers that a stage gives, by the part that has them first."""
    stage = plan.stage
    gives = [(OutputKind.GRAD, term.value, term.param) for term in graph.grads if term.stage == stage]
    if graph.loss is not None and graph.loss.stage == stage:
        gives.insert(0, (OutputKind.LOSS, graph.loss, ""))
    gives += [(OutputKind.BUFFER, item.value, item.buffer) for item in graph.buffers if item.stage == stage]
    made = plan.made_in()
    result: dict[PassLevel, Given] = {part: () for part in plan.parts if not isinstance(part, int)}
    for give in gives:
        part = made.get(give[1].id, (Phase.FORWARD, 0))
        if part[0] is Phase.FORWARD and give[0] not in EARLY:
            part = Phase.BACKWARD, plan.levels.turn
        result[part] = (*result[part], give)
    return result


def segments_text(stages: Sequence[StagePlan]) -> str:
    """Per stage the variants of its micro-batches; per segment its rows, what it keeps and what it gives."""
    lines: list[Line] = []
    shown: dict[int, str] = {}
    for plan in stages:
        title = f"pipeline {plan.pipeline}, stage {plan.stage}"
        same = shown.setdefault(id(plan.segments), title)
        lines.append((title, f"variants {plan.variants}", "" if same == title else f"as {same}"))
        if same == title:
            for segment in plan.segments:
                lines += _segment_lines(segment)
    return joined(lines)


def _segment_lines(segment: SegmentPlan) -> list[Line]:
    outputs = segment.outputs
    lines: list[Line] = [(f"  {segment.name}", f"{len(segment.rows)} rows")]
    lines += [("    keeps", *value_cells(value)) for value in outputs.micro]
    lines += [(f"    gives {kind.value}", *value_cells(value), name) for kind, value, name in outputs.special]
    return lines


@dataclass(frozen=True, slots=True)
class Segments(Pass[Synced, Segmented]):
    """Equal stages of equal pipelines have the same segments."""

    def run(self, state: Synced) -> Segmented:
        planner = StagePlanner(state.pipelines, state.ranks, state.levels, state.waves)
        stages = [
            planner.plan(number, stage, rows)
            for number, live in enumerate(state.live)
            for stage, rows in enumerate(live.stages)
        ]
        return grown(Segmented, state, stages=stages)

    def text(self, before: Synced, after: Segmented) -> str:
        return segments_text(after.stages)

    def problems(self, before: Synced, after: Segmented) -> Iterator[str]:
        """Every row of a stage is in one segment of each variant."""
        for plan in {id(plan.segments): plan for plan in after.stages}.values():
            yield from (f"pipeline {plan.pipeline}, stage {plan.stage}: {text}" for text in _problems(plan))


def _problems(plan: StagePlan) -> Iterator[str]:
    rows = len(plan.rows.forward) + len(plan.rows.backward)
    passes = sum(not isinstance(part, int) for part in plan.parts)
    for variant in range(len(plan.first_of)):
        own = [segment for segment in plan.segments if segment.variant == variant]
        found = sum(len(segment.rows) for segment in own[:passes])
        if len(own) != len(plan.parts) or found != rows:
            yield f"variant {variant} has {len(own)} of {len(plan.parts)} segments, {found} of {rows} rows"
