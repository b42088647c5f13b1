"""In which order the stages of each pipeline run their micro-batches, and the tag of each transfer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..base.pipeline_schedule import PipelineSchedule
from ..strategy.schedules.schedule_check import schedule_problems
from ..strategy.schedules.schedules_text import schedules_text
from .compile_state import Resolved, Scheduled, grown
from .pass_chain import Pass
from .resolve_comm import first_tags


@dataclass(frozen=True, slots=True)
class Schedule(Pass[Resolved, Scheduled]):
    """The strategy names a schedule, and a pipeline may have one of its own."""

    def run(self, state: Resolved) -> Scheduled:
        known: dict[PipelineSchedule, PipelineSchedule] = {}
        schedules = []
        for number in range(len(state.pipelines)):
            made = state.strategy.schedule_of(number)
            schedules.append(known.setdefault(made, made))
        return grown(Scheduled, state, schedules=schedules, tags=first_tags(state.live, state.ranks))

    def text(self, before: Resolved, after: Scheduled) -> str:
        return schedules_text(after.schedules)

    def problems(self, before: Resolved, after: Scheduled) -> Iterator[str]:
        """Each micro-batch goes forward and back through every stage once, and nobody waits for ever."""
        counts = {
            schedule: len(rows) for schedule, rows in zip(after.schedules, after.ranks.rows, strict=True)
        }
        for schedule, count in counts.items():
            yield from (f"{where}: {what}" for where, what in schedule_problems(schedule, count))
