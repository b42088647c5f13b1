"""In which part of its passes each row runs, and which ranks add up each sum over the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ..batch_levels import batch_levels
from ..compile_state import Gathered, Levelled, grown
from ..lower.batch_sums import sum_groups
from ..pass_chain import Pass
from ..row_checks import value_name
from ..step_counts import ranks_of_counts
from ..texts.live_text import levels_text


@dataclass(frozen=True, slots=True)
class Levels(Pass[Gathered, Levelled]):
    """Without sums over the batch everything is one level."""

    name: ClassVar[str] = "batch_levels"

    def run(self, state: Gathered) -> Levelled:
        levels = batch_levels(state.live)
        stages = [
            (number, state.ranks.of_stage(number, stage), rows)
            for number, live in enumerate(state.live)
            for stage, rows in enumerate(live.stages)
        ]
        return grown(
            Levelled,
            state,
            levels=levels,
            step_groups=ranks_of_counts(stages),
            sum_groups=sum_groups(state.graph, state.live, state.pipelines, state.ranks),
        )

    def text(self, before: Gathered, after: Levelled) -> str:
        return levels_text(after.live, after.levels, after.step_groups)

    def problems(self, before: Gathered, after: Levelled) -> Iterator[str]:
        """A row runs no earlier than what it reads, and ranks of a sum are ranks of the strategy."""
        for key, group in after.step_groups.items():
            if not group or list(group) != sorted({*group}):
                yield f"the sum {key} is reduced by {group}"
        if not after.levels.last:
            return
        for rows in {id(rows): rows for live in after.live for rows in live.stages}.values():
            for row in (*rows.forward, *rows.backward):
                own = after.levels.of_value(rows, row.out)
                last = max((after.levels.of_value(rows, value) for value in row.reads), default=0)
                if last > own:
                    yield f"{value_name(row.out)}, {row.op}, at level {own} reads a value of level {last}"
