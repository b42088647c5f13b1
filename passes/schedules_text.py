"""The schedules of a strategy's pipelines as text: actions per stage, then the grid over time."""

from __future__ import annotations

from ..strategy import Strategy
from .schedule import build_schedule
from .schedule_time import grid


def schedules_text(strategy: Strategy) -> str:
    """One block per pipeline."""
    blocks = []
    for number, pipeline in enumerate(strategy.pipelines):
        count = len(strategy.rows(number))
        schedule = build_schedule(strategy.schedule, len(pipeline.stages), count)
        title = f"pipeline {number}: {len(pipeline.stages)} stages, {count} micro-batches"
        blocks.append("\n".join([title, schedule.text().rstrip("\n"), grid(schedule)]))
    return "\n".join(blocks)
