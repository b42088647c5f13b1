"""In which order the stages of each pipeline run their micro-batches, and the tag of each transfer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ..compile_state import Resolved, Scheduled, grown
from ..pass_chain import Pass
from ..schedule import PipelineSchedule, build_schedule
from ..schedule_text import schedule_problems
from ..schedules_text import schedules_text
from ..stage_comm import first_tags


@dataclass(frozen=True, slots=True)
class Schedule(Pass[Resolved, Scheduled]):
    """Which schedule it is stands in the strategy."""

    name: ClassVar[str] = "schedule"

    def run(self, state: Resolved) -> Scheduled:
        strategy = state.strategy
        known: dict[tuple[int, int], PipelineSchedule] = {}
        schedules = []
        for pipeline, rows in zip(strategy.pipelines, state.ranks.rows, strict=True):
            size = len(pipeline.stages), len(rows)
            if size not in known:
                known[size] = build_schedule(strategy.schedule, *size)
            schedules.append(known[size])
        return grown(Scheduled, state, schedules=schedules, tags=first_tags(state.live, state.ranks))

    def text(self, before: Resolved, after: Scheduled) -> str:
        return schedules_text(after.schedules)

    def problems(self, before: Resolved, after: Scheduled) -> Iterator[str]:
        """Each micro-batch goes forward and back through every stage once, and nobody waits for ever."""
        for schedule in {id(schedule): schedule for schedule in after.schedules}.values():
            yield from (f"{where}: {what}" for where, what in schedule_problems(schedule))
