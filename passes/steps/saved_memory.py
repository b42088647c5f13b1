"""What each stage keeps of a micro-batch from its forward to its backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ...layout.layout import Coordinate
from ..compile_state import Measured, Scheduled, grown
from ..pass_chain import Pass
from ..saved_memory import LayoutCounts, alike_values, saved_bytes, saved_values
from ..segments import StagePlan
from ..texts.plan_text import saved_text


@dataclass(frozen=True, slots=True)
class SavedMemory(Pass[Scheduled, Measured]):
    """Bytes only: what is kept follows from the rows."""

    name: ClassVar[str] = "saved_memory"

    def run(self, state: Scheduled) -> Measured:
        known: dict[int, LayoutCounts] = {}
        for plan in state.stages:
            if id(plan.rows) not in known:
                known[id(plan.rows)] = alike_values(saved_values(plan.rows))
        return grown(Measured, state, saved=[_saved(plan, known[id(plan.rows)]) for plan in state.stages])

    def text(self, before: Scheduled, after: Measured) -> str:
        return saved_text(after.stages, after.saved)

    def problems(self, before: Scheduled, after: Measured) -> Iterator[str]:
        for plan, saved in zip(after.stages, after.saved, strict=True):
            counts = [len(own) for own in saved]
            if counts != [len(plan.variants)] * len(plan.ranks) or any(
                size < 0 for own in saved for size in own
            ):
                yield f"pipeline {plan.pipeline}, stage {plan.stage}: {saved} bytes"


def _saved(plan: StagePlan, kept: LayoutCounts) -> list[list[int]]:
    """Of each rank and micro-batch; those of one variant need the same."""
    found = []
    for index in range(len(plan.ranks)):
        of_variant = [saved_bytes(kept, Coordinate(index, at)) for at in plan.first_of]
        found.append([of_variant[variant] for variant in plan.variants])
    return found
