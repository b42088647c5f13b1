"""What runs as one piece: a stage's rows by pass and level, once for each kind of micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ..compile_state import Segmented, Synced, grown
from ..pass_chain import Pass
from ..segments import StagePlan, StagePlanner
from ..texts.plan_text import segments_text


@dataclass(frozen=True, slots=True)
class Segments(Pass[Synced, Segmented]):
    """Equal stages of equal pipelines have the same segments."""

    name: ClassVar[str] = "segments"

    def run(self, state: Synced) -> Segmented:
        planner = StagePlanner(state.pipelines, state.ranks, state.levels)
        stages = [
            planner.plan(number, stage, rows)
            for number, live in enumerate(state.live)
            for stage, rows in enumerate(live.stages)
        ]
        return grown(Segmented, state, stages=stages)

    def text(self, before: Synced, after: Segmented) -> str:
        return segments_text(after.stages)

    def problems(self, before: Synced, after: Segmented) -> Iterator[str]:
        """Every row of a stage is in one segment of each variant."""
        for plan in {id(plan.segments): plan for plan in after.stages}.values():
            yield from (f"pipeline {plan.pipeline}, stage {plan.stage}: {text}" for text in _problems(plan))


def _problems(plan: StagePlan) -> Iterator[str]:
    rows = len(plan.rows.forward) + len(plan.rows.backward)
    passes = sum(not isinstance(part, int) for part in plan.parts)
    for variant in range(len(plan.first_of)):
        own = [segment for segment in plan.segments if segment.variant == variant]
        found = sum(len(segment.rows) for segment in own[:passes])
        if len(own) != len(plan.parts) or found != rows:
            yield f"variant {variant} has {len(own)} of {len(plan.parts)} segments, {found} of {rows} rows"
