"""Annotated pipelines to a Program: segments by class, tables by rank, instructions by schedule."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..annotations.layout import Coordinate, Layout, whole
from ..comm_plan import Box, CommStep, GradBucket
from ..errors import DeduceError
from ..graph.annotated import AnnotatedRow, AnnotatedValue, PerCoordinate, PipelineGraph
from ..graph.ir import LogicalGraph, ParamInfo, Phase
from ..passes.annotate import first_coordinate
from ..passes.grad_sync import (
    GradLayout,
    Holder,
    buckets,
    make_holders,
    make_term,
    owned_boxes,
    shard_boxes,
)
from ..passes.liveness import Crossing, LivePipeline, StageRows, live_pipeline, operands_of
from ..passes.resolve_comm import CommResolver
from ..passes.schedule import ActionKind, build_schedule
from ..strategy import Rows, Strategy
from .lower_stage import Outputs, StageLowering, by_position
from .program import (
    ClassProgram,
    Instruction,
    Op,
    OutputKind,
    Program,
    RankProgram,
    Segment,
    Shard,
)
from .value_layouts import PlacedValue, ValueLayouts

FORWARD, BACKWARD, STEP = 0, 1, 2
PARTS = 3

Keys = tuple[tuple[object, ...], ...]
Tags = dict[tuple[int, int], int]
Place = tuple[Layout, tuple[int, ...]]

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
class Lowering:
    """The work of one compile: every stage of every pipeline."""

    graph: LogicalGraph
    strategy: Strategy
    pipelines: list[PipelineGraph]
    device_kind: str
    resolver: CommResolver = field(default_factory=CommResolver)
    lowered: dict[tuple[int, Keys], StagePlan] = field(default_factory=dict)
    rank_of: dict[int, int] = field(init=False)
    rows_of: list[list[Rows]] = field(init=False)
    ranks_of: dict[tuple[int, int], tuple[int, ...]] = field(init=False)
    places: dict[str, tuple[Place, ...]] = field(init=False)
    holders: dict[tuple[Place, ...], tuple[Holder, ...]] = field(default_factory=dict)
    positional: dict[int, list[PerCoordinate]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rank_of = self.strategy.ranks()
        self.rows_of = [self.strategy.rows(p) for p in range(len(self.strategy.pipelines))]
        self.ranks_of = {
            (p, s): tuple(self.rank_of[device] for device in stage.devices)
            for p, pipeline in enumerate(self.strategy.pipelines)
            for s, stage in enumerate(pipeline.stages)
        }
        self.places = self._find_places()

    def run(self) -> Lowered:
        """Lower everything."""
        live = self._live()
        plans = [
            self._stage(p, s, rows)
            for p, pipeline in enumerate(live)
            for s, rows in enumerate(pipeline.stages)
        ]
        step_groups = self._step_groups(plans)
        grads = self._grad_buckets()
        shards = self._shards()
        classes = Classes()
        tags = self._tags(live)
        ranks = [
            program
            for plan in plans
            for program in self._rank_programs(plan, classes, step_groups, grads, shards, tags)
        ]
        ranks.sort(key=lambda program: program.rank)
        inputs = {
            name: (info.shape, str(info.dtype).removeprefix("torch."))
            for name, info in self.graph.inputs.items()
        }
        aliases = {alias: name for name, info in self.graph.params.items() for alias in info.aliases}
        groups = _groups(ranks)
        program = Program(
            self.strategy.world_size,
            self.strategy.global_batch,
            inputs,
            aliases,
            classes.programs,
            ranks,
            groups,
        )
        return Lowered(program, self._value_layouts(plans))

    def _live(self) -> list[LivePipeline]:
        """The needed rows of each pipeline; pipelines that share a deduction share them."""
        known: dict[int, LivePipeline] = {}
        for p, graph in enumerate(self.pipelines):
            if id(graph.rows) not in known:
                known[id(graph.rows)] = live_pipeline(graph, len(self.strategy.pipelines[p].stages))
        return [known[id(graph.rows)] for graph in self.pipelines]

    def _value_layouts(self, plans: list[StagePlan]) -> ValueLayouts:
        """Where each logical value is computed and how, for values that the program keeps."""
        first = [first_coordinate(self.strategy, p) for p in range(len(self.pipelines))]
        result = ValueLayouts(first)
        known: dict[int, list[PlacedValue]] = {}
        for plan in plans:
            if id(plan.segments) in known:
                result.stages[plan.pipeline, plan.stage] = known[id(plan.segments)]
                continue
            once = (row for step in plan.rows.steps for row in step.rows)
            made = {row.out.id for row in (*plan.rows.forward, *plan.rows.backward, *once)}
            graph = self.pipelines[plan.pipeline]
            on_demand = ((row, value) for (row, _), value in graph.on_demand.items())
            result.stages[plan.pipeline, plan.stage] = [
                PlacedValue(logical, plan.lowering.number(value), value.layout)
                for logical, value in (*graph.logical.items(), *on_demand)
                if value.stage == plan.stage and value.id in made
            ] + [
                PlacedValue(step.row.out.logical, plan.lowering.number(step.share), step.share.layout)
                for step in plan.rows.steps
                if step.row.out.logical is not None
            ]
            known[id(plan.segments)] = result.stages[plan.pipeline, plan.stage]
        return result

    def stage_ranks(self, pipeline: int, stage: int) -> tuple[int, ...]:
        """Ranks of a stage in the order of its devices."""
        return self.ranks_of[pipeline, stage]

    def first_of_sizes(self, plan: StagePlan) -> list[int]:
        """Per variant the pipeline's first batch coordinate of its size, the same at both ends of a transfer.

        What moves depends on the size alone, while the stages at both ends may tell micro-batches of one
        size apart by their position, each for reasons of its own.
        """
        offset = first_coordinate(self.strategy, plan.pipeline)
        sizes = [high - low for low, high in self.rows_of[plan.pipeline]]
        return [offset + sizes.index(sizes[batch - offset]) for batch in plan.first_of]

    # Segments

    def _stage(self, pipeline: int, stage: int, rows: StageRows) -> StagePlan:
        """Lower a stage, or take over what an equal stage of an equal pipeline has been lowered to."""
        ranks = self.stage_ranks(pipeline, stage)
        variants, first_of, keys = self._variants(pipeline, rows)
        known = self.lowered.get((id(rows), keys))
        if known is not None:
            return replace(known, pipeline=pipeline, ranks=ranks, variants=variants, first_of=first_of)
        lowering = StageLowering(self.pipelines[pipeline], stage, len(ranks), len(self.graph.rows), rows)
        plan = StagePlan(pipeline, stage, ranks, rows, lowering, variants, first_of, [])
        for variant, batch in enumerate(first_of):
            lowering.variant = variant
            plan.segments += self._segments(plan, batch)
        self.lowered[id(rows), keys] = plan
        return plan

    def _variants(self, pipeline: int, rows: StageRows) -> tuple[list[int], list[int], Keys]:
        """Micro-batches that run the same segments, the batch coordinate that stands for each, their keys."""
        if id(rows) not in self.positional:
            self.positional[id(rows)] = by_position(rows)
        positional = self.positional[id(rows)]
        offset = first_coordinate(self.strategy, pipeline)
        numbers: dict[tuple[object, ...], int] = {}
        variants: list[int] = []
        first_of: list[int] = []
        for index, (low, high) in enumerate(self.rows_of[pipeline]):
            at = Coordinate(0, offset + index)
            key = (high - low, *(literal.at(at) for literal in positional))
            if key not in numbers:
                numbers[key] = len(first_of)
                first_of.append(offset + index)
            variants.append(numbers[key])
        return variants, first_of, tuple(numbers)

    def _segments(self, plan: StagePlan, batch: int) -> list[Segment]:
        """The forward, backward and step segment of one variant."""
        rows, graph = plan.rows, self.pipelines[plan.pipeline]
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
            self._step_segment(plan, number, batch),
        ]

    def _step_segment(self, plan: StagePlan, number: str, batch: int) -> Segment:
        needed = {row.out.id: row for step in plan.rows.steps for row in step.rows}
        rows = [row for row in self.pipelines[plan.pipeline].rows if row.out.id in needed] if needed else []
        special = tuple((OutputKind.STEP, step.share, "") for step in plan.rows.steps)
        return plan.lowering.segment(f"step.{number}", rows, Outputs((), special), batch)

    # Tables

    def _step_groups(self, plans: list[StagePlan]) -> list[tuple[int, ...]]:
        """Per step value, the ranks that reduce it: those of the one stage per pipeline that uses it."""
        using = [plan for plan in plans if plan.rows.steps]
        pipelines = [plan.pipeline for plan in using]
        counts = {len(plan.rows.steps) for plan in using}
        if len(set(pipelines)) != len(pipelines) or len(counts) > 1:
            raise DeduceError(
                "a count over the whole batch is used in several stages",
                at=[plan.rows.steps[0].row.where for plan in using],
                rule="a value summed over the batch from inputs alone is used in one stage of each pipeline",
                fix="use the count in the loss only, or put its users into one stage",
            )
        ranks = tuple(sorted(rank for plan in using for rank in plan.ranks))
        return [ranks] * (counts.pop() if counts else 0)

    def _grad_layouts(self) -> dict[str, GradLayout]:
        """What each parameter's reduction depends on; equal ones are one object."""
        terms: dict[str, list[Place]] = {}
        for p, graph in enumerate(self.pipelines):
            for term in graph.grads:
                place = (term.value.layout, self.stage_ranks(p, term.stage))
                terms.setdefault(term.param, []).append(place)
        known: dict[object, GradLayout] = {}
        for name, places in terms.items():
            key = (tuple(places), self.places[name])
            if key not in known:
                made = tuple(make_term(layout, ranks) for layout, ranks in places)
                known[key] = GradLayout(self.graph.params[name].shape, made, self._holders(name))
        return {
            name: known[tuple(terms[name]), self.places[name]] for name in self.graph.params if name in terms
        }

    def _grad_buckets(self) -> dict[int, list[GradBucket]]:
        dtypes = {name: str(info.dtype).removeprefix("torch.") for name, info in self.graph.params.items()}
        return buckets(self._grad_layouts(), dtypes)

    def _holders(self, name: str) -> tuple[Holder, ...]:
        """Every rank's piece of a parameter; parameters that are held alike have one tuple."""
        places = self.places[name]
        if places not in self.holders:
            self.holders[places] = tuple(
                holder for layout, ranks in places for holder in make_holders(layout, ranks)
            )
        return self.holders[places]

    def _find_places(self) -> dict[str, tuple[Place, ...]]:
        """Layout and ranks of each stage with a parameter; unused ones are whole in the first stages."""
        found: dict[str, list[Place]] = {name: [] for name in self.graph.params}
        for p, graph in enumerate(self.pipelines):
            used = set()
            for (name, stage), value in sorted(graph.params.items(), key=lambda item: item[0]):
                found[name].append((value.layout, self.stage_ranks(p, stage)))
                used.add(name)
            for name in self.graph.params.keys() - used:
                found[name].append((whole(self.graph.params[name].shape), self.stage_ranks(p, 0)))
        return {name: tuple(places) for name, places in found.items()}

    def _shards(self) -> dict[int, list[Shard]]:
        result: dict[int, list[Shard]] = {}
        owners: dict[int, dict[int, tuple[tuple[Box, Box], ...]]] = {}
        for name, info in self.graph.params.items():
            holders = self._holders(name)
            if id(holders) not in owners:
                owners[id(holders)] = owned_boxes(holders)
            made: dict[object, Shard] = {}
            for holder in holders:
                owned = owners[id(holders)][holder.rank]
                key = (holder.region, owned)
                if key not in made:
                    made[key] = _shard(info, holder, owned)
                result.setdefault(holder.rank, []).append(made[key])
        return result

    def _tags(self, live: list[LivePipeline]) -> Tags:
        """The first tag of each crossing; micro-batch m has the m-th after it."""
        tags: Tags = {}
        count = 0
        for p, pipeline in enumerate(live):
            for stage in pipeline.stages:
                for crossing in stage.arrivals:
                    tags[p, id(crossing.row)] = count
                    count += len(self.rows_of[p])
        return tags

    def _rank_programs(
        self,
        plan: StagePlan,
        classes: Classes,
        steps: list[tuple[int, ...]],
        grads: dict[int, list[GradBucket]],
        shards: dict[int, list[Shard]],
        tags: Tags,
    ) -> list[RankProgram]:
        name = classes.name_of(plan.segments)
        comms = [self._comm(plan, row, variant) for row, variant in plan.lowering.slots]
        reduces = [
            self.resolver.reduce(group, type_name(step.share))
            for group, step in zip(steps, plan.rows.steps, strict=False)
            if len(group) > 1
        ]
        crossings = Crossings.of(self, plan, tags)
        instructions = schedule_stage(self, plan, crossings, range(len(comms), len(comms) + len(reduces)))
        kinds = dict(self.strategy.device_kinds)
        devices = self.strategy.pipelines[plan.pipeline].stages[plan.stage].devices
        return [
            RankProgram(
                rank=rank,
                device=devices[index],
                pipeline=plan.pipeline,
                stage=plan.stage,
                coordinate=index,
                class_name=name,
                device_kind=kinds.get(devices[index], self.device_kind),
                rows=self.rows_of[plan.pipeline],
                literals=plan.lowering.literals[index],
                comms=[step[rank] for step in (*comms, *reduces)],
                transfers=[step[rank] for step in crossings.steps_of(rank)],
                shards=shards.get(rank, []),
                grad_buckets=grads.get(rank, []),
                instructions=instructions,
            )
            for index, rank in enumerate(plan.ranks)
        ]

    def _comm(self, plan: StagePlan, row: AnnotatedRow, variant: int) -> dict[int, CommStep]:
        assert row.marker is not None
        return self.resolver.collective(row.marker, plan.ranks, plan.first_of[variant], type_name(row.out))


def type_name(value: AnnotatedValue) -> str:
    """The dtype of a value, by name."""
    return str(value.dtype).removeprefix("torch.")


def _given(graph: PipelineGraph, stage: int, rows: StageRows) -> tuple[Given, Given]:
    """Gradients and the loss that a stage gives, by the segment that has them first."""
    gives = [(OutputKind.GRAD, term.value, term.param) for term in graph.grads if term.stage == stage]
    if graph.loss is not None and graph.loss.stage == stage:
        gives.insert(0, (OutputKind.LOSS, graph.loss, ""))
    backward = {row.out.id for row in rows.backward}
    early = tuple(give for give in gives if give[1].id not in backward and give[0] is OutputKind.LOSS)
    return early, tuple(give for give in gives if give not in early)


def _shard(info: ParamInfo, holder: Holder, owned: tuple[tuple[Box, Box], ...]) -> Shard:
    return Shard(
        name=info.name,
        dtype=str(info.dtype).removeprefix("torch."),
        shape=holder.view,
        view=holder.view,
        whole_shape=info.shape,
        whole_view=info.shape,
        boxes=shard_boxes(holder),
        owned=owned,
        trainable=info.trainable,
        is_buffer=info.is_buffer,
        persistent=info.persistent,
    )


@dataclass(slots=True)
class Classes:
    """Class programs by content: stages with the same work share one."""

    programs: dict[str, ClassProgram] = field(default_factory=dict)
    by_size: dict[object, list[str]] = field(default_factory=dict)
    by_identity: dict[int, str] = field(default_factory=dict)

    def name_of(self, segments: list[Segment]) -> str:
        """The class with these segments, new if there is none."""
        if id(segments) not in self.by_identity:
            self.by_identity[id(segments)] = self._equal_or_new(segments)
        return self.by_identity[id(segments)]

    def _equal_or_new(self, segments: list[Segment]) -> str:
        size = tuple((len(part.inputs), len(part.rows), len(part.outputs)) for part in segments)
        alike = self.by_size.setdefault(size, [])
        for name in alike:
            known = self.programs[name].segments
            if known == segments and repr(known) == repr(segments):  # 1 == 1.0 == True, but not as text
                return name
        name = f"c{len(self.programs)}"
        self.programs[name] = ClassProgram(name, segments)
        alike.append(name)
        return name


@dataclass(slots=True)
class Crossings:
    """A stage's transfers: slot of (crossing, variant), and the steps of all ranks per slot."""

    arrivals: list[Crossing]
    departures: list[Crossing]
    slots: dict[tuple[int, int], int]
    steps: list[dict[int, CommStep]]
    tags: Tags

    @staticmethod
    def of(lowering: Lowering, plan: StagePlan, tags: Tags) -> Crossings:
        """Resolve every crossing of a stage for each variant of its micro-batches."""
        result = Crossings(plan.rows.arrivals, plan.rows.departures, {}, [], tags)
        for crossing in (*result.arrivals, *result.departures):
            source = lowering.stage_ranks(plan.pipeline, crossing.source_stage)
            target = lowering.stage_ranks(plan.pipeline, crossing.target_stage)
            for variant, batch in enumerate(lowering.first_of_sizes(plan)):
                assert crossing.row.marker is not None
                result.slots[id(crossing.row), variant] = len(result.steps)
                result.steps.append(
                    lowering.resolver.transfer(
                        crossing.row.marker, source, target, batch, type_name(crossing.source)
                    )
                )
        return result

    def steps_of(self, rank: int) -> list[dict[int, CommStep]]:
        """The steps by slot; every rank of the stage has all of them."""
        return [step for step in self.steps if rank in step]


def schedule_stage(
    lowering: Lowering, plan: StagePlan, crossings: Crossings, reduces: range
) -> list[Instruction]:
    """A stage's instructions: counts, the schedule's actions with their transfers, then the step's end.

    reduces: slots of the counts' reductions, none where one rank counts alone.
    """
    spec = lowering.strategy.pipelines[plan.pipeline]
    count = len(plan.variants)
    result: list[Instruction] = []
    if plan.rows.steps:
        result += [
            Instruction(Op.STEP_COMPUTE, segment=plan.variants[mb] * PARTS + STEP, mb=mb)
            for mb in range(count)
        ]
        result += [
            Instruction(Op.STEP_REDUCE, value=plan.lowering.number(step.share), slot=slot)
            for slot, step in zip(reduces, plan.rows.steps, strict=False)
        ]
    schedule = build_schedule(lowering.strategy.schedule, len(spec.stages), count)
    for action in schedule.stages[plan.stage]:
        phase = Phase.FORWARD if action.kind is ActionKind.FORWARD else Phase.BACKWARD
        result += _action(plan, crossings, phase, action.micro_batch)
    return [*result, Instruction(Op.GRAD_SYNC), Instruction(Op.LOSS), Instruction(Op.OPTIMIZER)]


def _action(plan: StagePlan, crossings: Crossings, phase: Phase, mb: int) -> list[Instruction]:
    """Receive what the phase reads, compute, send what it made."""
    variant = plan.variants[mb]
    made = {row.out.id for row in (plan.rows.forward if phase is Phase.FORWARD else plan.rows.backward)}

    def move(op: Op, crossing: Crossing, value: AnnotatedValue) -> Instruction:
        slot = crossings.slots[id(crossing.row), variant]
        tag = crossings.tags[plan.pipeline, id(crossing.row)] + mb
        return Instruction(op, mb=mb, value=plan.lowering.number(value), slot=slot, tag=tag)

    part = FORWARD if phase is Phase.FORWARD else BACKWARD
    op = Op.FORWARD if phase is Phase.FORWARD else Op.BACKWARD
    return [
        *(move(Op.RECV, c, c.row.out) for c in crossings.arrivals if c.row.phase is phase),
        Instruction(op, segment=variant * PARTS + part, mb=mb),
        *(move(Op.SEND, c, c.source) for c in crossings.departures if c.source.id in made),
    ]


def _groups(ranks: list[RankProgram]) -> list[tuple[int, ...]]:
    """Every rank list that a collective uses, shortest first."""
    steps = {step.group for program in ranks for step in program.comms}
    reductions = {bucket.group for program in ranks for bucket in program.grad_buckets}
    return sorted(
        (group for group in steps | reductions if len(group) > 1), key=lambda group: (len(group), group)
    )


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program, and the layouts of its logical values."""

    program: Program
    layouts: ValueLayouts


def lower(
    graph: LogicalGraph, strategy: Strategy, pipelines: list[PipelineGraph], device_kind: str
) -> Lowered:
    """The Program of a strategy from its deduced pipelines."""
    return Lowering(graph, strategy, pipelines, device_kind).run()
