"""The schedules of a strategy's pipelines as text: actions per stage, then the grid over time."""

from __future__ import annotations

from collections.abc import Sequence

from ...base.pipeline_schedule import PipelineSchedule
from .schedule_time import grid


def schedules_text(schedules: Sequence[PipelineSchedule]) -> str:
    """One block per pipeline."""
    blocks = []
    for number, schedule in enumerate(schedules):
        count = schedule.num_micro_batches
        title = f"pipeline {number}: {schedule.num_stages} stages, {count} micro-batches"
        blocks.append("\n".join([title, schedule.text().rstrip("\n"), grid(schedule)]))
    return "\n".join(blocks)
