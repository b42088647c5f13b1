"""What the passes decided, written as a Program: segments by class, tables and instructions by rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ...artifact.value_layouts import PlacedValue, RoutedValue, RowOwners, ValueLayouts
from ...base.comm_plan import GradBucket, ParamBucket
from ...base.devices import DeviceKind
from ...ir.annotated import PipelineGraph
from ...layout.layout import Axis, home_of, make_layout, routing_of
from ...program.check import problems_of_program
from ...program.program import ClassProgram, Program, RankProgram, Segment, Shard
from ...program.program_text import program_text
from ...program.receipts import with_receipts
from ...rules.rules import uncut
from ..compile_state import KeptShapes, Measured
from ..pass_chain import Pass
from ..resolve_comm import StageComm
from ..segments import StagePlan
from .lane import Chunk, StageLane
from .lower_params import lower_shards
from .lower_stage import StageLowering
from .stage_tables import with_gathering


@dataclass(slots=True)
class ClassPrograms:
    """Every distinct class program under its name."""

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


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program, and the layouts of its logical values. kept: by rank, what it keeps of a micro-batch; of
    programs that are made for any size."""

    program: Program
    layouts: ValueLayouts
    kept: Mapping[int, KeptShapes] = field(default_factory=dict)


LoweredStage = tuple[StageLowering, list[Segment]]
"""The segments of stages that do the same, and the numbers of their values."""


@dataclass(slots=True)
class Lowering:
    """The work of one compile: every stage of every pipeline. device_kind: of
    devices that the strategy binds to none. known: by what a stage's segments hold, and by the steps that
    each communicating row takes: between other machines the same rows may take more."""

    state: Measured
    device_kind: str
    classes: ClassPrograms = field(default_factory=ClassPrograms)
    known: dict[tuple[int, tuple[int, ...]], LoweredStage] = field(default_factory=dict)
    together: dict[object, list[Segment]] = field(default_factory=dict)

    def run(self) -> Lowered:
        """Lower everything."""
        state = self.state
        shards = lower_shards(state.places, state.ownership, state.strategy.zero)
        lanes = [*self._lanes()]
        programs = [program for lane in lanes for program in self._rank_programs(lane, shards)]
        programs.sort(key=lambda program: program.rank)
        kept = {
            rank: shapes
            for plan, own in zip(state.stages, state.kept, strict=False)
            for rank, shapes in zip(plan.ranks, own, strict=True)
        }
        return Lowered(self._program(with_receipts(programs)), self._value_layouts(lanes), kept)

    def _stage(self, plan: StagePlan, comm: StageComm) -> LoweredStage:
        """A stage's segments; those of one plan are lowered once."""
        key = _as_lowered(plan, comm)
        found = self.known.get(key)
        if found is None:
            graph, rows = self.state.pipelines[plan.pipeline], len(self.state.graph.rows)
            numbers = StageLowering(graph, plan.stage, len(plan.ranks), rows, plan.rows, comm.rounds)
            segments = [
                numbers.segment(each.name, each.rows, each.outputs, plan.first_of[each.variant])
                for each in plan.segments
            ]
            found = self.known[key] = numbers, segments
        return found

    def _lanes(self) -> Iterator[StageLane]:
        """The stages of each set of ranks."""
        of: dict[tuple[int, int], list[Chunk]] = {}
        for plan, comm, saved in zip(self.state.stages, self.state.comms, self.state.saved, strict=True):
            numbers, segments = self._stage(plan, comm)
            lane = self.state.strategy.pipelines[plan.pipeline].lane_of(plan.stage)
            of.setdefault((plan.pipeline, lane[0]), []).append(Chunk(plan, comm, saved, numbers, segments))
        return (StageLane(chunks) for chunks in of.values())

    def _rank_programs(self, lane: StageLane, shards: dict[int, list[Shard]]) -> list[RankProgram]:
        """The programs of ranks that run the same stages."""
        state, plan = self.state, lane.chunks[0].plan
        name = self.classes.name_of(self._segments(lane))
        pipeline = plan.pipeline
        instructions = lane.instructions(state.tags, state.schedules[pipeline], state.scatters[pipeline])
        devices = state.strategy.pipelines[pipeline].stages[plan.stage].devices
        made = state.reductions
        return [
            RankProgram(
                rank=rank,
                device=devices[index],
                pipeline=pipeline,
                stage=plan.stage,
                coordinate=index,
                class_name=name,
                device_kind=state.ranks.kind(devices[index], self.device_kind),
                rows=state.ranks.rows[pipeline],
                literals=lane.literals(index),
                comms=[*lane.comms(rank), *made.steps.get(rank, ())],
                transfers=lane.transfers(rank),
                shards=shards.get(rank, []),
                grad_buckets=[_moved(bucket, lane.slots) for bucket in made.grads.get(rank, ())],
                instructions=with_gathering(instructions, made.gathers, state.strategy.zero),
                param_buckets=[_moved(bucket, lane.slots) for bucket in made.gathers.get(rank, ())],
                saved=lane.saved(index),
                receives_ahead=state.strategy.receives_ahead,
                segment_stages=lane.segment_stages,
            )
            for index, rank in enumerate(plan.ranks)
        ]

    def _segments(self, lane: StageLane) -> list[Segment]:
        """Those of all stages; of equal ones they are put together once."""
        if len(lane.chunks) == 1:
            return lane.chunks[0].segments
        key = tuple(_as_lowered(chunk.plan, chunk.comm) for chunk in lane.chunks)
        if key not in self.together:
            self.together[key] = lane.segments()
        return self.together[key]

    def _program(self, ranks: list[RankProgram]) -> Program:
        strategy, params = self.state.strategy, self.state.graph.params
        inputs = {
            name: (info.shape, str(info.dtype).removeprefix("torch."))
            for name, info in self.state.graph.inputs.items()
        }
        aliases = {alias: name for name, info in params.items() for alias in info.aliases}
        return Program(
            strategy.world_size,
            strategy.global_batch,
            inputs,
            aliases,
            self.classes.programs,
            ranks,
            _groups(ranks),
        )

    def _value_layouts(self, lanes: Sequence[StageLane]) -> ValueLayouts:
        """Where each logical value is computed and how, for values that the program keeps."""
        pipelines = self.state.pipelines
        result = ValueLayouts([self.state.ranks.first_coordinate(p) for p in range(len(pipelines))])
        known: dict[tuple[int, tuple[int, ...]], list[PlacedValue]] = {}
        for lane, number, chunk in ((each, *at) for each in lanes for at in enumerate(each.chunks)):
            plan, alike = chunk.plan, _as_lowered(chunk.plan, chunk.comm)
            if alike not in known:
                known[alike] = _placed_values(plan, chunk.numbers, pipelines[plan.pipeline])
            result.stages[plan.pipeline, plan.stage] = lane.placed(number, known[alike])
            routed = _routed_values(plan, chunk.numbers, pipelines[plan.pipeline])
            if routed:
                result.routed[plan.pipeline, plan.stage] = lane.placed(number, routed)
        return result


def _as_lowered(plan: StagePlan, comm: StageComm) -> tuple[int, tuple[int, ...]]:
    """Equal for stages that are lowered alike."""
    return id(plan.segments), tuple(comm.rounds)


def _placed_values(plan: StagePlan, numbers: StageLowering, graph: PipelineGraph) -> list[PlacedValue]:
    """The logical values that a stage makes, and the shares of its step values."""
    counts = [step for step in plan.rows.steps if step.counts]
    once = (row for step in counts for row in step.rows)
    made = {row.out.id for row in (*plan.rows.forward, *plan.rows.backward, *once)}
    on_demand = ((row, value) for (row, _), value in graph.on_demand.items())
    return [
        PlacedValue(logical, numbers.value(value).id, value.layout)
        for logical, value in (*graph.logical.items(), *on_demand)
        if value.stage == plan.stage and value.id in made and routing_of(value.layout) is None
    ] + [
        PlacedValue(step.row.out.logical, numbers.value(step.share).id, step.share.layout)
        for step in counts
        if step.row.out.logical is not None
    ]


def _routed_values(plan: StagePlan, numbers: StageLowering, graph: PipelineGraph) -> list[RoutedValue]:
    """The logical values that a stage makes whose rows lie at the owners of their experts."""
    if not graph.routings:
        return []
    made = {row.out.id for row in (*plan.rows.forward, *plan.rows.backward)}
    found: list[RoutedValue] = []
    for logical, value in graph.logical.items():
        routing = routing_of(value.layout)
        if routing is not None and value.stage == plan.stage and value.id in made:
            dim, of = routing[0], graph.routings[routing[1].key]
            owners = RowOwners(of.experts, make_layout((of.home,)), of.owned)
            addends = uncut(home_of(value.layout), ranks=True)
            addends = make_layout(addends.dims, addends.partial | {Axis.TENSOR})
            found.append(RoutedValue(logical, numbers.value(value).id, addends, dim, owners))
    return found


B = TypeVar("B", GradBucket, ParamBucket)


def _moved(bucket: B, first: int) -> B:
    """A bucket whose slot counts from the rank's first one."""
    return bucket if bucket.slot < 0 else replace(bucket, slot=first + bucket.slot)


def _groups(ranks: list[RankProgram]) -> list[tuple[int, ...]]:
    """Every rank list that a collective uses, shortest first."""
    used = [step.group for program in ranks for step in program.comms]
    used += [bucket.group for program in ranks for bucket in program.grad_buckets]
    distinct = {*{id(group): group for group in used}.values()}  # hashing a group takes as long as it is
    return sorted((group for group in distinct if len(group) > 1), key=lambda group: (len(group), group))


@dataclass(frozen=True, slots=True)
class Lower(Pass[Measured, Lowered]):
    """device: of those devices that the strategy binds to no kind."""

    device: DeviceKind = DeviceKind.CPU

    def run(self, state: Measured) -> Lowered:
        return Lowering(state, self.device.value).run()

    def text(self, before: Measured, after: Lowered) -> str:
        return program_text(after.program)

    def problems(self, before: Measured, after: Lowered) -> Iterator[str]:
        """Every rank has a program, of a class that is there."""
        program = after.program
        if [own.rank for own in program.ranks] != list(range(program.world_size)):
            yield f"programs of ranks {[own.rank for own in program.ranks]}, not of all {program.world_size}"
        used = {own.class_name for own in program.ranks}
        if used != program.classes.keys():
            yield f"classes {sorted(program.classes)}, used {sorted(used)}"

    def slow_problems(self, after: Lowered) -> Iterator[str]:
        """Every value, slot, literal, parameter and group that a program names is there."""
        return (f"{where}: {what}" for where, what in problems_of_program(after.program))
