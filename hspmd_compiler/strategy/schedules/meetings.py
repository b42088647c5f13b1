"""Whether all ranks may meet in the middle of a schedule, as they do with ZeRO-2 to hand over gradients.

All pipelines meet equally often (`scatter_points`), and a stage meets the others behind what it does last of
a micro-batch: its backward pass, or the gradients of weights that this pass left. Nobody waits for ever where
whatever an action needs of other stages stands before the same meeting there. Backward passes in their order
see to that by themselves; gradients of weights that a stage leaves longer than the next one does may not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ...base.pipeline_schedule import PipelineSchedule, StageAction
from .schedule_check import ScheduleProblem
from .schedule_time import waits_for


def meeting_problems(schedule: PipelineSchedule, points: Collection[int]) -> Iterator[ScheduleProblem]:
    """Every action that needs one behind a meeting that it stands before. points: micro-batches."""
    met = dict(_met(schedule, points))
    for (stage, action), before in met.items():
        needed = waits_for(schedule, stage, action)
        if needed is not None and met[needed] > before:
            other = needed[1].text(needed[0])
            yield (
                f"stage {stage}",
                f"{action.text(stage)} waits for ever for {other}: ranks hand over gradients in between,"
                " which zero 2 and 3 do behind what stages do last of a micro-batch",
            )


def _met(schedule: PipelineSchedule, points: Collection[int]) -> Iterator[tuple[StageAction, int]]:
    """How many meetings stand before each action."""
    for stage, row in enumerate(schedule.stages):
        last, count = schedule.ends_with(stage), 0
        for action in row:
            yield (stage, action), count
            count += action.kind is last and action.micro_batch in points
