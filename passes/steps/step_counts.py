"""A count that inputs alone make is made by one stage of each pipeline; the others add zero."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ..compile_state import Live
from ..pass_chain import Pass
from ..row_checks import live_problems
from ..step_counts import counted_once
from ..texts.live_text import counts_text


@dataclass(frozen=True, slots=True)
class StepCounts(Pass[Live, Live]):
    """All stages and pipelines come to their counts in one order."""

    name: ClassVar[str] = "step_counts"

    def run(self, state: Live) -> Live:
        known = {id(live): counted_once(live) for live in {id(live): live for live in state.live}.values()}
        return replace(state, live=[known[id(live)] for live in state.live])

    def text(self, before: Live, after: Live) -> str:
        return counts_text(after.live)

    def problems(self, before: Live, after: Live) -> Iterator[str]:
        yield from live_problems(after.pipelines, before.live, after.live)
        for number, live in enumerate(after.live):
            counted = [step.key for rows in live.stages for step in rows.steps if step.counts]
            used = {step.key for rows in live.stages for step in rows.steps}
            if sorted(counted) != sorted(used):
                yield f"pipeline {number} uses the counts {sorted(used)} and makes {sorted(counted)}"
