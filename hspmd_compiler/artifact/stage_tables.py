"""What a stage's ranks have beside its class program: steps of transfers, and instructions by schedule."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..annotations.layout import sample_lengths
from ..comm_plan import CommStep
from ..graph.annotated import AnnotatedValue, CommMarker
from ..graph.ir import Phase
from ..passes.batch_levels import Part
from ..passes.liveness import Crossing, LivePipeline, StepValue
from ..passes.resolve_comm import CommResolver
from ..passes.schedule import Action, ActionKind, build_schedule
from .program import ZERO_PARAMS, Instruction, Op
from .stage_plan import StagePlan
from .strategy_ranks import StrategyRanks

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
        for crossing in (*result.arrivals, *result.departures):
            marker, dtype = crossing.row.marker, type_name(crossing.source)
            assert marker is not None
            source = ranks.of_stage(plan.pipeline, crossing.source_stage)
            target = ranks.of_stage(plan.pipeline, crossing.target_stage)
            for variant, batch in enumerate(_first_alike(plan, ranks, marker)):
                result.slots[id(crossing.row), variant] = len(result.steps)
                result.steps.append(resolver.transfer(marker, source, target, batch, dtype))
        return result

    def steps_of(self, rank: int) -> list[dict[int, CommStep]]:
        """The steps by slot; every rank of the stage has all of them."""
        return [step for step in self.steps if rank in step]


def _first_alike(plan: StagePlan, ranks: StrategyRanks, marker: CommMarker) -> list[int]:
    """Per variant the pipeline's first batch coordinate that sends as much, the same at both ends.

    What moves depends on how much a micro-batch holds of the value, while the stages at both ends may tell
    micro-batches apart by their position, each for reasons of its own.
    """
    offset, count = ranks.first_coordinate(plan.pipeline), len(ranks.rows[plan.pipeline])

    def held(batch: int) -> tuple[int, ...]:
        low, high = ranks.rows[plan.pipeline][batch - offset]
        return high - low, *sample_lengths(marker.source, batch), *sample_lengths(marker.target, batch)

    first: dict[tuple[int, ...], int] = {}
    for batch in range(offset, offset + count):
        first.setdefault(held(batch), batch)
    return [first[held(batch)] for batch in plan.first_of]


def schedule_stage(
    plan: StagePlan,
    ranks: StrategyRanks,
    crossings: Crossings,
    reduces: Sequence[tuple[StepValue, int]],
    scatters: Collection[int],
) -> list[Instruction]:
    """A stage's instructions: step values, the schedule's actions with their transfers, then the step's end.

    reduces: step values and the slots of their reductions, without those that one rank makes alone.
    scatters: micro-batches behind whose backward pass gradients are handed over.
    """
    result = _step_values(plan, reduces)
    levels = plan.levels
    made = {(phase, at): _made(plan, (phase, at)) for phase in Phase for at in range(levels.last + 1)}
    for level in range(levels.last + 1):
        for action in _actions(plan, ranks, level):
            phase = Phase.FORWARD if action.kind is ActionKind.FORWARD else Phase.BACKWARD
            result += _action(plan, crossings, (phase, level), action.micro_batch, made[phase, level])
            if phase is Phase.BACKWARD and level == levels.last and action.micro_batch in scatters:
                result.append(Instruction(Op.GRAD_SCATTER))
        shares = made[Phase.FORWARD, level] | made[Phase.BACKWARD, level]
        result += _reductions(plan, [(step, slot) for step, slot in reduces if step.share.id in shares])
    return [*result, Instruction(Op.GRAD_SYNC), Instruction(Op.LOSS), Instruction(Op.OPTIMIZER)]


def _made(plan: StagePlan, part: Part) -> set[int]:
    return {row.out.id for row in plan.rows_of(part)}


def _step_values(plan: StagePlan, reduces: Sequence[tuple[StepValue, int]]) -> list[Instruction]:
    """What inputs alone decide: shares of all micro-batches, then their reductions, round after round."""
    result: list[Instruction] = []
    rounds = plan.levels.rounds
    for at in sorted({rounds[step.key] for step in plan.rows.steps}):
        for mb in range(len(plan.variants)):
            segment = plan.segment_of(at, mb)
            assert segment is not None, "made for every round of the stage"
            result.append(Instruction(Op.STEP_COMPUTE, segment=segment, mb=mb))
        known = {step.share.id for step in plan.rows.steps if rounds[step.key] == at}
        result += _reductions(plan, [(step, slot) for step, slot in reduces if step.share.id in known])
    return result


def _reductions(plan: StagePlan, reduces: Sequence[tuple[StepValue, int]]) -> list[Instruction]:
    return [
        Instruction(Op.STEP_REDUCE, value=plan.lowering.number(step.share), slot=slot)
        for step, slot in reduces
    ]


def _actions(plan: StagePlan, ranks: StrategyRanks, level: int) -> Sequence[Action]:
    """What a stage does of a level: forward before the turn, backward behind it, both at it."""
    count, turn = len(plan.variants), plan.levels.turn
    if level == turn:
        stages = len(ranks.pipeline(plan.pipeline).stages)
        return build_schedule(ranks.strategy.schedule, stages, count).stages[plan.stage]
    kind = ActionKind.FORWARD if level < turn else ActionKind.BACKWARD
    return [Action(kind, mb) for mb in range(count)]


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
    plan: StagePlan, crossings: Crossings, part: Part, mb: int, made: Collection[int]
) -> list[Instruction]:
    """Receive what a part of a pass reads, compute, send what it made."""
    variant, segment = plan.variants[mb], plan.segment_of(part, mb)

    def move(op: Op, crossing: Crossing, value: AnnotatedValue) -> Instruction:
        slot = crossings.slots[id(crossing.row), variant]
        tag = crossings.tags[plan.pipeline, id(crossing.row)] + mb
        return Instruction(op, mb=mb, value=plan.lowering.number(value), slot=slot, tag=tag)

    op = Op.FORWARD if part[0] is Phase.FORWARD else Op.BACKWARD
    arrivals = [c for c in crossings.arrivals if plan.levels.part(plan.rows, c.row) == part]
    return [
        *(move(Op.RECV, c, c.row.out) for c in arrivals),
        *([] if segment is None else [Instruction(op, segment=segment, mb=mb)]),
        *(move(Op.SEND, c, c.source) for c in crossings.departures if c.source.id in made),
    ]
