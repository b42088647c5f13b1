"""Pipeline schedules: in which order each stage runs its forward and backward micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from ..errors import StrategyError


class ActionKind(Enum):
    """What a stage does with a micro-batch; the value is its letter in texts.

    WEIGHTS: gradients of weights, which no other stage waits for, where backward passes leave them to later.
    """

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHTS = "W"


@dataclass(frozen=True, slots=True)
class Action:
    """What is done with one micro-batch; the stage is the one whose row the action stands in."""

    kind: ActionKind
    micro_batch: int

    def text(self, stage: int) -> str:
        """`1F0`: stage 1, forward, micro-batch 0."""
        return f"{stage}{self.kind.value}{self.micro_batch}"


StageAction = tuple[int, Action]


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """The actions of every stage, in the order in which it runs them.

    lanes: where devices run several stages, one entry per set of devices: the stage of each of its actions,
    in turn. Empty: each stage has devices of its own.
    """

    stages: tuple[tuple[Action, ...], ...]
    lanes: tuple[tuple[int, ...], ...] = ()

    @property
    def num_stages(self) -> int:
        return len(self.stages)

    @property
    def rows(self) -> tuple[tuple[StageAction, ...], ...]:
        """What each set of devices runs, in its order."""
        if not self.lanes:
            return tuple(tuple((stage, each) for each in row) for stage, row in enumerate(self.stages))
        left = [iter(row) for row in self.stages]
        return tuple(tuple((stage, next(left[stage])) for stage in lane) for lane in self.lanes)

    @property
    def num_micro_batches(self) -> int:
        return sum(action.kind is ActionKind.FORWARD for action in self.stages[0])

    def splits(self, stage: int) -> bool:
        """Whether a stage runs gradients of weights apart from its backward passes."""
        return any(action.kind is ActionKind.WEIGHTS for action in self.stages[stage])

    def ends_with(self, stage: int) -> ActionKind:
        """What a stage does last of a micro-batch: behind it its gradients are there."""
        return ActionKind.WEIGHTS if self.splits(stage) else ActionKind.BACKWARD

    def text(self) -> str:
        """One line per set of devices, `0F0 0F1 0B0 0B1`; `read_schedule` reads it back."""
        rows = (" ".join(action.text(stage) for stage, action in row) for row in self.rows)
        return "\n".join(rows) + "\n"


Lanes = tuple[tuple[int, ...], ...]
"""The stages that each set of devices runs."""


def of_lanes(rows: Sequence[Sequence[StageAction]], stages: int) -> PipelineSchedule:
    """The schedule of devices in several stages. rows: what each set of devices runs, in its order."""
    own: list[list[Action]] = [[] for _ in range(stages)]
    for row in rows:
        for stage, action in row:
            own[stage].append(action)
    return PipelineSchedule(tuple(map(tuple, own)), tuple(tuple(stage for stage, _ in row) for row in rows))


Order = Callable[[int, int, int], Iterator[Action]]
"""What one stage runs: of its number, the number of stages, and that of micro-batches."""


def gpipe(stage: int, stages: int, micro_batches: int) -> Iterator[Action]:
    """All forwards, then all backwards."""
    return in_turns(micro_batches, micro_batches)


def one_f_one_b(stage: int, stages: int, micro_batches: int) -> Iterator[Action]:
    """As many forwards ahead as there are stages behind, then forward and backward in turns."""
    return in_turns(min(micro_batches, stages - stage - 1), micro_batches)


def in_turns(ahead: int, micro_batches: int) -> Iterator[Action]:
    """Forward and backward in turns, the forwards `ahead` micro-batches before the backwards."""
    for step in range(micro_batches + ahead):
        if step < micro_batches:
            yield Action(ActionKind.FORWARD, step)
        if step >= ahead:
            yield Action(ActionKind.BACKWARD, step - ahead)


def zb_h1(stage: int, stages: int, micro_batches: int) -> Iterator[Action]:
    """1F1B whose stages leave the gradients of weights until as many later backward passes are through as
    there are stages before: input gradients go on at once, and no stage keeps more micro-batches than the
    first one. That one has nobody to wait for it, and leaves nothing to later.
    """
    for action in one_f_one_b(stage, stages, micro_batches):
        yield action
        if stage and action.kind is ActionKind.BACKWARD and action.micro_batch >= stage:
            yield Action(ActionKind.WEIGHTS, action.micro_batch - stage)
    if stage:
        for left in range(max(0, micro_batches - stage), micro_batches):
            yield Action(ActionKind.WEIGHTS, left)


class ScheduleKind(Enum):
    """The schedules that a strategy can name, each with its order.

    AUTO leaves it to a compile, which puts another in its place. To add one, write an order above and a
    line here. Forwards, and backwards, run in the order of micro-batches, so that gradients are added in one
    order; the pass checks that, and that none waits.
    """

    GPIPE = "gpipe", gpipe
    ONE_F_ONE_B = "1f1b", one_f_one_b
    ZB_H1 = "zb-h1", zb_h1
    AUTO = "auto", one_f_one_b

    _value_: str
    order: Order

    def __new__(cls, text: str, order: Order) -> ScheduleKind:
        kind = object.__new__(cls)
        kind._value_, kind.order = text, order
        return kind

    def splits(self, stage: int, stages: int) -> bool:
        """Whether a stage runs gradients of weights apart from its backward passes."""
        return any(action.kind is ActionKind.WEIGHTS for action in self.order(stage, stages, 1))


def build_schedule(kind: ScheduleKind, stages: int, micro_batches: int) -> PipelineSchedule:
    """The schedule of one pipeline, from its own number of stages and of micro-batches."""
    if stages < 1 or micro_batches < 1:
        raise StrategyError(
            "a schedule needs at least one stage and one micro-batch",
            details=[("stages", str(stages)), ("micro-batches", str(micro_batches))],
        )
    return PipelineSchedule(tuple(tuple(kind.order(stage, stages, micro_batches)) for stage in range(stages)))


def scatter_points(counts: Sequence[int]) -> list[frozenset[int]]:
    """Per pipeline of so many micro-batches, those behind whose backward pass gradients are handed over.

    All pipelines meet equally often, as often as the one with the fewest micro-batches has them, and spread
    these meetings over their own micro-batches. Nobody waits for ever: a stage sends on what a backward pass
    made before it meets the others, and whatever that pass needed of other stages stands before the same
    meeting there, since stages run their backward passes in one order and the forwards of an earlier stage
    are never behind those of a later one. The meeting behind the last micro-batch is the end of the step.
    """
    meetings = min(counts)
    return [frozenset(count * k // meetings - 1 for k in range(1, meetings)) for count in counts]
