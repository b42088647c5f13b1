"""Annotated pipelines to a Program: segments by class, tables by rank, instructions by schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ..annotations.layout import Coordinate
from ..comm_plan import CommStep, GradBucket, ParamBucket
from ..graph.annotated import GATHER, AnnotatedRow, BatchSum, PipelineGraph
from ..graph.ir import LogicalGraph
from ..passes.batch_levels import batch_levels, in_order
from ..passes.liveness import LivePipeline, live_pipeline
from ..passes.param_gather import NAME, gathered_inside, with_gathers
from ..passes.recompute import recompute
from ..passes.resolve_comm import CommResolver
from ..passes.saved_memory import Alike, alike_values, saved_bytes, saved_values
from ..passes.scatter_points import scatter_points
from ..passes.step_counts import Key, counted_once, ranks_of_counts
from ..strategy import Recompute, Strategy
from .batch_sums import sum_groups
from .class_programs import ClassPrograms
from .lower_params import ParamLowering
from .lower_zero import ZeroLowering, ZeroTables
from .program import ZERO_GRADS, ZERO_PARAMS, Program, RankProgram
from .stage_plan import StagePlan, StagePlanner
from .stage_tables import Crossings, Tags, first_tags, schedule_stage, type_name, with_gathering
from .strategy_ranks import StrategyRanks
from .value_layouts import PlacedValue, ValueLayouts


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program, and the layouts of its logical values."""

    program: Program
    layouts: ValueLayouts


def lower(
    graph: LogicalGraph, strategy: Strategy, pipelines: list[PipelineGraph], device_kind: str
) -> Lowered:
    """The Program of a strategy from its deduced pipelines."""
    return Lowering(graph, StrategyRanks(strategy, device_kind), pipelines).run()


@dataclass(frozen=True, slots=True)
class RankTables:
    """What ranks have of their own. step_groups: per step value, the ranks that reduce it. sum_groups:
    the same of each sum over the batch within a pass. scatters: per pipeline, the micro-batches behind
    which gradients are handed over."""

    step_groups: Mapping[Key, tuple[int, ...]]
    sum_groups: dict[BatchSum, tuple[int, ...]]
    held: ZeroTables
    tags: Tags
    zero: ZeroLowering | None
    scatters: list[frozenset[int]]


@dataclass(slots=True)
class Lowering:
    """The work of one compile: every stage of every pipeline."""

    graph: LogicalGraph
    ranks: StrategyRanks
    pipelines: list[PipelineGraph]
    resolver: CommResolver = field(default_factory=CommResolver)
    classes: ClassPrograms = field(default_factory=ClassPrograms)
    kept: dict[int, Alike] = field(default_factory=dict)

    def run(self) -> Lowered:
        """Lower everything."""
        params = ParamLowering(self.graph, self.pipelines, self.ranks)
        live = self._live()
        zero = self._zero(params)
        if zero is not None and zero.inside:
            stored = {
                name: info.stored for name, info in self.graph.params.items() if info.stored is not None
            }
            gathered = with_gathers(live, self.pipelines, zero.inside, stored)
            if gathered is None:
                zero = ZeroLowering(params, zero.zero, frozenset(), self.resolver)
            else:
                live = gathered
        levels = batch_levels(live)
        planner = StagePlanner(self.pipelines, self.ranks, len(self.graph.rows), levels)
        plans = [
            planner.plan(p, s, rows)
            for p, pipeline in enumerate(live)
            for s, rows in enumerate(pipeline.stages)
        ]
        groups = ranks_of_counts([(plan.pipeline, plan.ranks, plan.rows) for plan in plans])
        if zero is None:
            trained = list(params.grad_layouts())
            held = ZeroTables(params.shards({}, 0), params.grad_buckets(trained, {}))
        else:
            held = zero.tables()
        sums = sum_groups(self.graph, live, self.pipelines, self.ranks)
        tables = RankTables(groups, sums, held, first_tags(live, self.ranks), zero, self._scatters(zero))
        programs = [program for plan in plans for program in self._rank_programs(plan, tables)]
        programs.sort(key=lambda program: program.rank)
        return Lowered(self._program(programs), self._value_layouts(plans))

    def _live(self) -> list[LivePipeline]:
        """The needed rows of each pipeline; those that share a deduction and recompute alike share them."""
        known: dict[tuple[int, tuple[Recompute, ...]], LivePipeline] = {}
        result = []
        for p, graph in enumerate(self.pipelines):
            spec = self.ranks.pipeline(p)
            key = (id(graph.rows), spec.recompute)
            if key not in known:
                live = live_pipeline(graph, len(spec.stages))
                known[key] = counted_once(recompute(live, graph, self.graph, spec))
            result.append(known[key])
        return result

    def _rank_programs(self, plan: StagePlan, tables: RankTables) -> list[RankProgram]:
        """The programs of a stage's ranks."""
        name = self.classes.name_of(plan.segments)
        comms = [self._comm(plan, *slot, tables) for slot in plan.lowering.slots]
        steps = (*plan.rows.steps, *in_order(plan.rows.sums))
        shared = [step for step in steps if len(tables.step_groups[step.key]) > 1]
        reduces = [
            self.resolver.reduce(tables.step_groups[step.key], type_name(step.share)) for step in shared
        ]
        crossings = Crossings.of(plan, self.ranks, self.resolver, tables.tags)
        slots = list(zip(shared, range(len(comms), len(comms) + len(reduces)), strict=True))
        scatters = tables.scatters[plan.pipeline]
        instructions = schedule_stage(plan, self.ranks, crossings, slots, scatters)
        devices = self.ranks.devices(plan.pipeline, plan.stage)
        saved = self._saved(plan)
        first_slot, held = len(comms) + len(reduces), tables.held
        return [
            RankProgram(
                rank=rank,
                device=devices[index],
                pipeline=plan.pipeline,
                stage=plan.stage,
                coordinate=index,
                class_name=name,
                device_kind=self.ranks.kind(devices[index]),
                rows=self.ranks.rows[plan.pipeline],
                literals=plan.lowering.literals[index],
                comms=[*(step[rank] for step in (*comms, *reduces)), *held.steps.get(rank, ())],
                transfers=[step[rank] for step in crossings.steps_of(rank)],
                shards=held.shards.get(rank, []),
                grad_buckets=[_moved(bucket, first_slot) for bucket in held.grads.get(rank, ())],
                instructions=with_gathering(instructions, held.gathers, self.ranks.strategy.zero),
                param_buckets=[_moved(bucket, first_slot) for bucket in held.gathers.get(rank, ())],
                saved=saved[index],
            )
            for index, rank in enumerate(plan.ranks)
        ]

    def _saved(self, plan: StagePlan) -> list[list[int]]:
        """Bytes that each rank of a stage keeps of each micro-batch; those of one variant need the same."""
        if id(plan.rows) not in self.kept:
            self.kept[id(plan.rows)] = alike_values(saved_values(plan.rows))
        kept, found = self.kept[id(plan.rows)], []
        for index in range(len(plan.ranks)):
            of_variant = [saved_bytes(kept, Coordinate(index, at)) for at in plan.first_of]
            found.append([of_variant[variant] for variant in plan.variants])
        return found

    def _zero(self, params: ParamLowering) -> ZeroLowering | None:
        """The sharing out of what ZeRO is about; None without ZeRO."""
        strategy = self.ranks.strategy
        if not strategy.zero:
            return None
        zero = ZeroLowering(params, strategy.zero, frozenset(), self.resolver)
        if strategy.zero < ZERO_PARAMS:
            return zero
        inside = gathered_inside(strategy, self.pipelines, zero.shared)
        return ZeroLowering(params, strategy.zero, inside, self.resolver)

    def _scatters(self, zero: ZeroLowering | None) -> list[frozenset[int]]:
        """Per pipeline, where gradients are handed over before the end of a step; nowhere below ZeRO-2."""
        counts = [len(rows) for rows in self.ranks.rows]
        if zero is None or zero.zero < ZERO_GRADS or not zero.shared:
            return [frozenset()] * len(counts)
        return scatter_points(counts)

    def _comm(
        self, plan: StagePlan, row: AnnotatedRow, variant: int, number: int, tables: RankTables
    ) -> dict[int, CommStep]:
        """A round of a communication."""
        if row.op == GATHER:
            assert tables.zero is not None, "only ZeRO gathers"
            return tables.zero.gather(str(row.kwargs[NAME]))
        assert row.marker is not None
        if row.marker.batch_sum is not None:
            return self.resolver.reduce(tables.sum_groups[row.marker.batch_sum], type_name(row.out))
        batch, dtype = plan.first_of[variant], type_name(row.out)
        return self.resolver.steps(row.marker, plan.ranks, batch, dtype)[number]

    def _program(self, ranks: list[RankProgram]) -> Program:
        strategy, params = self.ranks.strategy, self.graph.params
        inputs = {
            name: (info.shape, str(info.dtype).removeprefix("torch."))
            for name, info in self.graph.inputs.items()
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

    def _value_layouts(self, plans: list[StagePlan]) -> ValueLayouts:
        """Where each logical value is computed and how, for values that the program keeps."""
        first = [self.ranks.first_coordinate(p) for p in range(len(self.pipelines))]
        result = ValueLayouts(first)
        known: dict[int, list[PlacedValue]] = {}
        for plan in plans:
            if id(plan.segments) not in known:
                known[id(plan.segments)] = _placed_values(plan, self.pipelines[plan.pipeline])
            result.stages[plan.pipeline, plan.stage] = known[id(plan.segments)]
        return result


def _placed_values(plan: StagePlan, graph: PipelineGraph) -> list[PlacedValue]:
    """The logical values that a stage makes, and the shares of its step values."""
    counts = [step for step in plan.rows.steps if step.counts]
    once = (row for step in counts for row in step.rows)
    made = {row.out.id for row in (*plan.rows.forward, *plan.rows.backward, *once)}
    on_demand = ((row, value) for (row, _), value in graph.on_demand.items())
    return [
        PlacedValue(logical, plan.lowering.number(value), value.layout)
        for logical, value in (*graph.logical.items(), *on_demand)
        if value.stage == plan.stage and value.id in made
    ] + [
        PlacedValue(step.row.out.logical, plan.lowering.number(step.share), step.share.layout)
        for step in counts
        if step.row.out.logical is not None
    ]


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
