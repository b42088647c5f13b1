"""Instruction lists of one pipeline from prices of its stages, in the orders in which runtimes execute it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...base.timeline import SpanKind
from ..actions import Compute, RecvFrom, SendTo, TimedAction

FORWARD_TAG, BACKWARD_TAG = "activation", "gradient"


@dataclass(frozen=True, slots=True)
class StagePrices:
    """Seconds of one stage, the same for every micro-batch.

    after_recv_s: at work after each receive, as the gathering of slices. later_s: more that every
    backward after the first costs, as adding up gradients.
    """

    forward_s: float
    backward_s: float
    after_recv_s: float = 0.0
    later_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BoundaryPrices:
    """Between a stage and the next: seconds on the wire each way, and bytes of one rank's message."""

    activation_s: float
    gradient_s: float
    message_bytes: int


Turn = tuple[bool, int]
"""Whether it is a forward, and of which micro-batch."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages and the boundaries between them; a rank of the lists is a stage's number."""

    stages: tuple[StagePrices, ...]
    boundaries: tuple[BoundaryPrices, ...]
    micro_batches: int

    def receive(self, stage: int, turn: Turn) -> list[TimedAction]:
        """What a turn needs from a neighbour."""
        forward, mb = turn
        peer, tag = (stage - 1, FORWARD_TAG) if forward else (stage + 1, BACKWARD_TAG)
        if not 0 <= peer < len(self.stages):
            return []
        actions: list[TimedAction] = [RecvFrom(peer, tag, f"{tag} {mb}", mb=mb)]
        after = self.stages[stage].after_recv_s
        return [*actions, Compute(after, SpanKind.GATHER, f"gather {tag} {mb}", mb=mb)] if after else actions

    def send(self, stage: int, turn: Turn) -> list[TimedAction]:
        """What a turn gives to a neighbour."""
        forward, mb = turn
        peer, tag = (stage + 1, FORWARD_TAG) if forward else (stage - 1, BACKWARD_TAG)
        if not 0 <= peer < len(self.stages):
            return []
        boundary = self.boundaries[min(stage, peer)]
        wire = boundary.activation_s if forward else boundary.gradient_s
        return [SendTo(peer, tag, boundary.message_bytes, wire, f"{tag} {mb}", mb=mb)]

    def compute(self, stage: int, turn: Turn) -> TimedAction:
        """The turn itself."""
        forward, mb = turn
        prices = self.stages[stage]
        if forward:
            return Compute(prices.forward_s, SpanKind.FORWARD, f"forward {mb}", mb=mb)
        return Compute(
            prices.backward_s + (prices.later_s if mb else 0.0), SpanKind.BACKWARD, f"backward {mb}", mb=mb
        )


Order = Callable[[Pipeline, int], list[TimedAction]]


def lists(pipeline: Pipeline, order: Order) -> dict[int, list[TimedAction]]:
    """stage -> its instruction list."""
    return {stage: order(pipeline, stage) for stage in range(len(pipeline.stages))}


def one_f_one_b(pipeline: Pipeline, stage: int) -> list[TimedAction]:
    """1F1B: a turn receives what it needs right before it computes, and sends right after."""
    actions: list[TimedAction] = []
    for turn in _turns(len(pipeline.stages) - stage, pipeline.micro_batches):
        actions += pipeline.receive(stage, turn)
        actions.append(pipeline.compute(stage, turn))
        actions += pipeline.send(stage, turn)
    return actions


def _turns(in_flight: int, micro_batches: int) -> Sequence[Turn]:
    ahead = min(in_flight, micro_batches)
    turns: list[Turn] = [(True, mb) for mb in range(ahead)]
    for mb in range(micro_batches):
        turns.append((False, mb))
        if mb + ahead < micro_batches:
            turns.append((True, mb + ahead))
    return turns


def deepspeed_order(pipeline: Pipeline, stage: int) -> list[TimedAction]:
    """DeepSpeed's TrainSchedule: 1F1B by a clock whose ticks neighbours spend on opposite ways.

    Before a forward a stage sends the gradient of its last turn, then receives; before a backward it
    receives, then sends the activation of its last turn. So what a turn made leaves a tick later.
    """
    stages, count = len(pipeline.stages), pipeline.micro_batches
    actions: list[TimedAction] = []
    last: Turn | None = None
    for tick in range(2 * (count + stages - 1)):
        turn = _turn_of_tick(tick, stage, stages)
        given = pipeline.send(stage, last) if last is not None else []
        needed = pipeline.receive(stage, turn) if 0 <= turn[1] < count else []
        actions += [*given, *needed] if turn[0] else [*needed, *given]
        if 0 <= turn[1] < count:
            actions.append(pipeline.compute(stage, turn))
        last = turn if 0 <= turn[1] < count else None
    return actions


def _turn_of_tick(tick: int, stage: int, stages: int) -> Turn:
    """Even stages go forward on even ticks and odd ones on odd ticks; the micro-batch may not exist."""
    half = tick // 2
    if tick % 2 == stage % 2:
        return True, half - stage // 2
    return False, half - stages + (stage + 1) // 2 + (1 - stage % 2)
