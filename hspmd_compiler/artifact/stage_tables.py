"""What a stage's ranks have beside its class program: steps of transfers, and instructions by schedule."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..comm_plan import CommStep
from ..graph.annotated import AnnotatedValue
from ..graph.ir import Phase
from ..passes.liveness import Crossing, LivePipeline, StepValue
from ..passes.resolve_comm import CommResolver
from ..passes.schedule import ActionKind, build_schedule
from .program import ZERO_PARAMS, Instruction, Op
from .stage_plan import StagePlan
from .strategy_ranks import StrategyRanks

FORWARD, BACKWARD, STEP = 0, 1, 2
PARTS = 3

Tags = dict[tuple[int, int], int]


def first_tags(live: list[LivePipeline], ranks: StrategyRanks) -> Tags:
    """The first tag of each crossing; micro-batch m has the m-th after it."""
    tags: Tags = {}
    count = 0
    for p, pipeline in enumerate(live):
        for stage in pipeline.stages:
            for crossing in stage.arrivals:
                tags[p, id(crossing.row)] = count
                count += len(ranks.rows[p])
    return tags


def type_name(value: AnnotatedValue) -> str:
    """The dtype of a value, by name."""
    return str(value.dtype).removeprefix("torch.")


@dataclass(slots=True)
class Crossings:
    """A stage's transfers: slot of (crossing, variant), and the steps of all ranks per slot."""

    arrivals: list[Crossing]
    departures: list[Crossing]
    slots: dict[tuple[int, int], int]
    steps: list[dict[int, CommStep]]
    tags: Tags

    @staticmethod
    def of(plan: StagePlan, ranks: StrategyRanks, resolver: CommResolver, tags: Tags) -> Crossings:
        """Resolve every crossing of a stage for each variant of its micro-batches."""
        result = Crossings(plan.rows.arrivals, plan.rows.departures, {}, [], tags)
        batches = _first_of_sizes(plan, ranks)
        for crossing in (*result.arrivals, *result.departures):
            marker, dtype = crossing.row.marker, type_name(crossing.source)
            assert marker is not None
            source = ranks.of_stage(plan.pipeline, crossing.source_stage)
            target = ranks.of_stage(plan.pipeline, crossing.target_stage)
            for variant, batch in enumerate(batches):
                result.slots[id(crossing.row), variant] = len(result.steps)
                result.steps.append(resolver.transfer(marker, source, target, batch, dtype))
        return result

    def steps_of(self, rank: int) -> list[dict[int, CommStep]]:
        """The steps by slot; every rank of the stage has all of them."""
        return [step for step in self.steps if rank in step]


def _first_of_sizes(plan: StagePlan, ranks: StrategyRanks) -> list[int]:
    """Per variant the pipeline's first batch coordinate of its size, the same at both ends of a transfer.

    What moves depends on the size alone, while the stages at both ends may tell micro-batches of one
    size apart by their position, each for reasons of its own.
    """
    offset = ranks.first_coordinate(plan.pipeline)
    sizes = [high - low for low, high in ranks.rows[plan.pipeline]]
    return [offset + sizes.index(sizes[batch - offset]) for batch in plan.first_of]


def schedule_stage(
    plan: StagePlan,
    ranks: StrategyRanks,
    crossings: Crossings,
    reduces: Sequence[tuple[StepValue, int]],
    scatters: Collection[int],
) -> list[Instruction]:
    """A stage's instructions: counts, the schedule's actions with their transfers, then the step's end.

    reduces: counts and the slots of their reductions, without those that one rank makes alone.
    scatters: micro-batches behind whose backward pass gradients are handed over.
    """
    count = len(plan.variants)
    result: list[Instruction] = []
    if plan.rows.steps:
        result += [
            Instruction(Op.STEP_COMPUTE, segment=plan.variants[mb] * PARTS + STEP, mb=mb)
            for mb in range(count)
        ]
        result += [
            Instruction(Op.STEP_REDUCE, value=plan.lowering.number(step.share), slot=slot)
            for step, slot in reduces
        ]
    stages = len(ranks.pipeline(plan.pipeline).stages)
    schedule = build_schedule(ranks.strategy.schedule, stages, count)
    made = {
        Phase.FORWARD: {row.out.id for row in plan.rows.forward},
        Phase.BACKWARD: {row.out.id for row in plan.rows.backward},
    }
    for action in schedule.stages[plan.stage]:
        phase = Phase.FORWARD if action.kind is ActionKind.FORWARD else Phase.BACKWARD
        result += _action(plan, crossings, phase, action.micro_batch, made[phase])
        if phase is Phase.BACKWARD and action.micro_batch in scatters:
            result.append(Instruction(Op.GRAD_SCATTER))
    return [*result, Instruction(Op.GRAD_SYNC), Instruction(Op.LOSS), Instruction(Op.OPTIMIZER)]


def with_gathering(
    instructions: list[Instruction], gathers: Mapping[int, object], zero: int
) -> list[Instruction]:
    """Parameters that are stored in shares, gathered behind the update, or around the use of them."""
    if not gathers:
        return instructions
    gather, drop = Instruction(Op.PARAM_GATHER), Instruction(Op.PARAM_DROP)
    if zero < ZERO_PARAMS:
        return [*instructions, gather]
    end = next(index for index, step in enumerate(instructions) if step.op is Op.GRAD_SYNC)
    return [gather, *instructions[:end], drop, *instructions[end:]]


def _action(
    plan: StagePlan, crossings: Crossings, phase: Phase, mb: int, made: set[int]
) -> list[Instruction]:
    """Receive what the phase reads, compute, send what it made."""
    variant = plan.variants[mb]

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
