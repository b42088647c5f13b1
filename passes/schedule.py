"""Pipeline schedules: in which order each stage runs its forward and backward micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from ..errors import StrategyError
from ..strategy import ScheduleKind


class ActionKind(Enum):
    """Which way a micro-batch goes through a stage; the value is its letter in texts."""

    FORWARD = "F"
    BACKWARD = "B"


@dataclass(frozen=True, slots=True)
class Action:
    """One micro-batch forward or backward; the stage is the one whose row the action stands in."""

    kind: ActionKind
    micro_batch: int

    def text(self, stage: int) -> str:
        """`1F0`: stage 1, forward, micro-batch 0."""
        return f"{stage}{self.kind.value}{self.micro_batch}"


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """The actions of every stage, in the order in which it runs them."""

    stages: tuple[tuple[Action, ...], ...]

    @property
    def num_stages(self) -> int:
        return len(self.stages)

    @property
    def num_micro_batches(self) -> int:
        return sum(action.kind is ActionKind.FORWARD for action in self.stages[0])

    def text(self) -> str:
        """One line per stage, `0F0 0F1 0B0 0B1`; `parse_schedule` reads it back."""
        rows = (" ".join(action.text(stage) for action in row) for stage, row in enumerate(self.stages))
        return "\n".join(rows) + "\n"


def build_schedule(kind: ScheduleKind, stages: int, micro_batches: int) -> PipelineSchedule:
    """The schedule of one pipeline, from its own number of stages and of micro-batches.

    ONE_F_ONE_B: stage s runs min(micro-batches, stages - s - 1) forwards, then forward and backward
    in turns, then the backwards that are left. GPIPE: all forwards, then all backwards. In both,
    backwards run in the order of micro-batches, so that gradients are added in one order.
    """
    if stages < 1 or micro_batches < 1:
        raise StrategyError(
            "a schedule needs at least one stage and one micro-batch",
            details=[("stages", str(stages)), ("micro-batches", str(micro_batches))],
        )
    rows = []
    for stage in range(stages):
        ahead = micro_batches if kind is ScheduleKind.GPIPE else min(micro_batches, stages - stage - 1)
        rows.append(tuple(_stage_actions(ahead, micro_batches)))
    return PipelineSchedule(tuple(rows))


def _stage_actions(ahead: int, micro_batches: int) -> Iterator[Action]:
    """Forward and backward in turns, the forwards `ahead` micro-batches before the backwards."""
    for step in range(micro_batches + ahead):
        if step < micro_batches:
            yield Action(ActionKind.FORWARD, step)
        if step >= ahead:
            yield Action(ActionKind.BACKWARD, step - ahead)
