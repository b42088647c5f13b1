"""The rules that every schedule of a pipeline keeps: each micro-batch once each way, and no deadlock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...base.pipeline_schedule import Action, ActionKind, PipelineSchedule
from .schedule_time import simulate, waits_for

BEFORE = {ActionKind.BACKWARD: ActionKind.FORWARD, ActionKind.WEIGHTS: ActionKind.BACKWARD}
"""What a stage does of a micro-batch before."""
ScheduleProblem = tuple[str, str]
"""A stage, and what is wrong there."""


def schedule_problems(schedule: PipelineSchedule, micro_batches: int) -> list[ScheduleProblem]:
    """Every misplaced action, else the actions that wait for each other for ever."""
    found = [
        (f"stage {stage}", text)
        for stage, row in enumerate(schedule.stages)
        for text in _problems_of_row(stage, row, micro_batches)
    ]
    counts = Counter(stage for lane in schedule.lanes for stage in lane)
    if schedule.lanes and counts != Counter({at: len(row) for at, row in enumerate(schedule.stages)}):
        found.append(("devices", "the order of their stages is not one of the actions that these have"))
    return found or list(_blocked(schedule))


def _problems_of_row(stage: int, row: Sequence[Action], count: int) -> Iterator[str]:
    """Every micro-batch once forward and later once backward, both in their order.

    Behind that its weights, of all micro-batches or of none.
    """
    splits = any(action.kind is ActionKind.WEIGHTS for action in row)
    for kind in ActionKind if splits else (ActionKind.FORWARD, ActionKind.BACKWARD):
        numbers = [action.micro_batch for action in row if action.kind is kind]
        held = {*numbers}
        for number in sorted({*range(count), *held}):
            if number >= count:
                yield f"{Action(kind, number).text(stage)}: there are {count} micro-batches"
            elif number not in held:
                yield f"{Action(kind, number).text(stage)} is missing{_where(kind, stage, number)}"
        if held == {*range(count)} and numbers != list(range(count)):
            yield f"{kind.name.lower()} runs {' '.join(map(str, numbers))}: each micro-batch once, from 0 on"
    seen: dict[ActionKind, set[int]] = {kind: set() for kind in ActionKind}
    for action in row:
        before = BEFORE.get(action.kind)
        if before is not None and action.micro_batch < count and action.micro_batch not in seen[before]:
            yield f"{action.text(stage)} stands before its {before.name.lower()}"
        seen[action.kind].add(action.micro_batch)


def _where(kind: ActionKind, stage: int, number: int) -> str:
    """What wants an action that is missing, and where to add it."""
    if kind not in BEFORE:
        return ": a stage has an F of each micro-batch; add it"
    before = Action(BEFORE[kind], number).text(stage)
    if kind is ActionKind.BACKWARD:
        return f": a stage has a B of each micro-batch; add it behind {before}"
    rule = "a stage with a W has one of each micro-batch"
    return f": {rule}; add it behind {before}, or leave out every W of stage {stage}"


def _blocked(schedule: PipelineSchedule) -> Iterator[ScheduleProblem]:
    for stage, action in simulate(schedule).blocked:
        needed = waits_for(schedule, stage, action)
        if needed is not None:
            yield f"stage {stage}", f"{action.text(stage)} waits for ever for {needed[1].text(needed[0])}"
