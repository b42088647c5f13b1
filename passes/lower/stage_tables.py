"""What a stage's ranks do, one instruction after the other: by the schedule, with their transfers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...base.pipeline_schedule import Action, ActionKind, PipelineSchedule
from ...ir.annotated import AnnotatedValue
from ...ir.graph import Phase
from ...program.program import ZERO_PARAMS, Instruction, Op
from ..batch_levels import PassLevel
from ..liveness import Crossing
from ..resolve_comm import StageComm, Tags
from ..segments import StagePlan
from .lower_stage import StageLowering

Departures = dict[PassLevel, list[Crossing]]
END = tuple(Instruction(op) for op in (Op.GRAD_SYNC, Op.LOSS, Op.OPTIMIZER))


@dataclass(frozen=True, slots=True)
class StageTables:
    """Everything that a stage's instructions follow from. numbers: of its values. scatters: micro-batches
    behind whose backward pass gradients are handed over. lane: stages of the same ranks: what crosses between
    them stays where it is."""

    plan: StagePlan
    numbers: StageLowering
    comm: StageComm
    tags: Tags
    schedule: PipelineSchedule
    scatters: Collection[int]
    lane: Collection[int] = ()

    def instructions(self) -> list[Instruction]:
        """Step values, the schedule's actions with their transfers, then the step's end."""
        result = self.step_values()
        levels, plan = self.plan.levels, self.plan
        sent = self.departures()
        for level in range(levels.last + 1):
            for action in self._actions(level):
                result += self.action(action, level, sent)
                if self._ends_micro_batch(action, level) and action.micro_batch in self.scatters:
                    result.append(Instruction(Op.GRAD_SCATTER))
            backward = plan.pieces if level == levels.last else [(Phase.BACKWARD, level)]
            result += self._reductions(_made(plan, (Phase.FORWARD, level), *backward))
        waits = [Instruction(Op.REDUCE_WAIT, wave=wave) for wave in plan.waves.every]
        return [*result, *self._starts(-1, () if plan.variants else plan.waves.every), *waits, *END]

    def action(self, action: Action, level: int, sent: Departures) -> list[Instruction]:
        """What the schedule has a stage do at one place."""
        phase = Phase.FORWARD if action.kind is ActionKind.FORWARD else Phase.BACKWARD
        if action.kind is ActionKind.WEIGHTS:
            return self._weights(action.micro_batch)
        if phase is Phase.BACKWARD and level == self.plan.levels.last:
            return self._last_level(action.micro_batch, sent)
        return self._action((phase, level), action.micro_batch, sent)

    def _last_level(self, mb: int, sent: Departures) -> list[Instruction]:
        """The end of a micro-batch's backward pass; of the last one, sums of gradients that start within."""
        plan, is_last = self.plan, mb == len(self.plan.variants) - 1
        result: list[Instruction] = []
        for number, piece in enumerate(plan.pieces):
            result += self._action(piece, mb, sent)
            if is_last and plan.waves.starts:
                result += self._starts(mb, plan.waves.starts[number])
        return result

    def _starts(self, mb: int, waves: Collection[int]) -> list[Instruction]:
        return [Instruction(Op.REDUCE_START, mb=mb, wave=wave) for wave in waves]

    def departures(self) -> Departures:
        """By part what is sent behind it. What goes to one stage leaves in the order in which it is awaited,
        so that a value waits for one before it that a later piece makes."""
        made = self.plan.made_in()
        found: Departures = {}
        latest: dict[tuple[int, Phase], PassLevel] = {}
        for each in self.plan.rows.departures:
            part = made.get(each.source.id)
            if part is None or each.target_stage in self.lane:
                continue
            if part in self.plan.pieces:
                key = (each.target_stage, part[0])
                part = latest[key] = max(part, latest.get(key, part), key=lambda found: found[1])
            found.setdefault(part, []).append(each)
        return found

    def _ends_micro_batch(self, action: Action, level: int) -> bool:
        """Whether a micro-batch has all of its gradients behind it."""
        at_turn = level == self.plan.levels.turn
        last = self.schedule.ends_with(self.plan.stage) if at_turn else ActionKind.BACKWARD
        return level == self.plan.levels.last and action.kind is last

    def _weights(self, mb: int) -> list[Instruction]:
        """Gradients that a backward pass has left."""
        segment = self.plan.segment_of(self.plan.weights_part, mb)
        return [] if segment is None else [Instruction(Op.WEIGHTS, segment=segment, mb=mb)]

    def step_values(self) -> list[Instruction]:
        """What inputs alone decide: shares of all micro-batches, then their reductions, round after round."""
        result: list[Instruction] = []
        rounds = self.plan.levels.rounds
        for at in sorted({rounds[step.key] for step in self.plan.rows.steps}):
            for mb in range(len(self.plan.variants)):
                segment = self.plan.segment_of(at, mb)
                assert segment is not None, "made for every round of the stage"
                result.append(Instruction(Op.STEP_COMPUTE, segment=segment, mb=mb))
            result += self._reductions(
                {step.share.id for step in self.plan.rows.steps if rounds[step.key] == at}
            )
        return result

    def _reductions(self, shares: Collection[int]) -> list[Instruction]:
        """Of the sums whose shares these are."""
        return [
            Instruction(Op.STEP_REDUCE, value=self.numbers.value(step.share).id, slot=slot)
            for step, slot in self.comm.reduced
            if step.share.id in shares
        ]

    def _actions(self, level: int) -> Sequence[Action]:
        """What a stage does of a level: forward before the turn, backward behind it, both at it."""
        turn = self.plan.levels.turn
        if level == turn:
            return self.schedule.stages[self.plan.stage]
        kind = ActionKind.FORWARD if level < turn else ActionKind.BACKWARD
        return [Action(kind, mb) for mb in range(len(self.plan.variants))]

    def _action(self, part: PassLevel, mb: int, sent: Departures) -> list[Instruction]:
        """Receive what a part of a pass reads, compute, send what it made."""
        plan, segment = self.plan, self.plan.segment_of(part, mb)
        op = Op.FORWARD if part[0] is Phase.FORWARD else Op.BACKWARD
        arrivals = [
            each
            for each in plan.rows.arrivals
            if plan.levels.part(plan.rows, each.row) == part and each.source_stage not in self.lane
        ]
        return [
            *(self._move(Op.RECV, each, each.row.out, mb) for each in arrivals),
            *([] if segment is None else [Instruction(op, segment=segment, mb=mb)]),
            *(self._move(Op.SEND, each, each.source, mb) for each in sent.get(part, ())),
        ]

    def _move(self, op: Op, crossing: Crossing, value: AnnotatedValue, mb: int) -> Instruction:
        slot = self.comm.crossings[id(crossing.row), self.plan.variants[mb]]
        tag = self.tags[self.plan.pipeline, id(crossing.row)] + mb
        return Instruction(op, mb=mb, value=self.numbers.value(value).id, slot=slot, tag=tag)


def _made(plan: StagePlan, *parts: PassLevel) -> set[int]:
    return {row.out.id for part in parts for row in plan.rows_of(part)}


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
