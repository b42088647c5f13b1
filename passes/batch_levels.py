"""In which part of its passes each row runs, where activations of the whole batch decide what comes next.

Level 0 needs no sum over the batch, level n + 1 one whose shares are made at level n. All micro-batches run a
level before any runs the next; between two levels the shares are reduced, in one order on all ranks. Backward
passes begin at the last level of forward passes, `turn`, where both take turns as the schedule says; without
sums everything is level 0.

Nobody waits for ever: all pipelines have the same levels and come to the same sums between them in one order;
in a level a pipeline waits for itself alone, and its stages wait in one direction, or as the schedule says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import DeduceError
from ..ir.annotated import AnnotatedRow, AnnotatedValue
from ..ir.graph import Phase
from .compile_state import Gathered, Levelled, grown
from .liveness import LivePipeline, StageRows, StepValue
from .lower.batch_sums import sum_groups
from .pass_chain import Pass
from .step_counts import CountKey, ranks_of_counts
from .texts.cells import Line, alike, joined, row_cells, value_name

PassLevel = tuple[Phase, int]
"""A pass, and a level of it."""


@dataclass(slots=True)
class BatchLevels:
    """The levels of all pipelines. turn: the first of backward passes. last: of all. rounds: of step values
    that inputs make, those that need others after these. of_stage: per stage's rows, by value."""

    turn: int = 0
    last: int = 0
    sums: dict[CountKey, int] = field(default_factory=dict)
    rounds: dict[CountKey, int] = field(default_factory=dict)
    of_stage: dict[int, Mapping[int, int]] = field(default_factory=dict)

    def part(self, rows: StageRows, row: AnnotatedRow) -> PassLevel:
        """The pass and the level that a row runs in."""
        first = 0 if row.phase is Phase.FORWARD else self.turn
        return row.phase, max(first, self.of_value(rows, row.out))

    def of_value(self, rows: StageRows, value: AnnotatedValue) -> int:
        """The level at which a stage has a value; 0 of parameters, inputs and what they alone make."""
        return self.of_stage.get(id(rows), {}).get(value.id, 0)


def batch_levels(live: Sequence[LivePipeline]) -> BatchLevels:
    """The levels of all rows and sums."""
    levels = BatchLevels(rounds=_rounds(live))
    distinct = list({id(pipeline): pipeline for pipeline in live}.values())
    if not any(rows.sums for pipeline in distinct for rows in pipeline.stages):
        return levels
    known: dict[CountKey, int] | None = None
    while known != levels.sums:
        known = dict(levels.sums)
        _sweep(distinct, levels)
        if max(levels.sums.values()) > len(levels.sums):
            raise _circular(distinct)
    return levels


def _sweep(pipelines: Sequence[LivePipeline], levels: BatchLevels) -> None:
    """Levels of all values by what is known of the sums, then those of the sums."""
    found = [_Sweep(pipeline, levels) for pipeline in pipelines]
    for sweep in found:
        sweep.run(Phase.FORWARD, 0)
    levels.turn = max(sweep.highest for sweep in found)
    for sweep in found:
        sweep.run(Phase.BACKWARD, levels.turn)
    levels.last = max(sweep.highest for sweep in found)
    for sweep in found:
        for number, rows in enumerate(sweep.pipeline.stages):
            levels.of_stage[id(rows)] = sweep.of[number]
            for item in rows.sums:
                level = sweep.of[number][item.share.id]
                levels.sums[item.key] = max(level, levels.sums.get(item.key, 0))


@dataclass(slots=True)
class _Sweep:
    """One pipeline. of: levels by stage and value. highest: of all rows so far."""

    pipeline: LivePipeline
    levels: BatchLevels
    of: list[dict[int, int]] = field(init=False)
    highest: int = 0

    def __post_init__(self) -> None:
        self.of = [
            {item.row.out.id: self.levels.sums.get(item.key, 0) + 1 for item in rows.sums}
            for rows in self.pipeline.stages
        ]

    def run(self, phase: Phase, first: int) -> None:
        """Forward through the stages, or back."""
        stages = list(enumerate(self.pipeline.stages))
        for number, rows in stages if phase is Phase.FORWARD else stages[::-1]:
            of = self.of[number]
            for crossing in rows.arrivals:
                if crossing.row.phase is phase:
                    source = self.of[crossing.source_stage].get(crossing.source.id, 0)
                    self._note(of, crossing.row.out, max(first, source))
            for row in rows.forward if phase is Phase.FORWARD else rows.backward:
                self._note(of, row.out, max([first, *(of.get(value.id, 0) for value in row.reads)]))

    def _note(self, of: dict[int, int], value: AnnotatedValue, level: int) -> None:
        of[value.id] = level
        self.highest = max(self.highest, level)


def _rounds(live: Sequence[LivePipeline]) -> dict[CountKey, int]:
    """After which others a step value of inputs is made: 0 what needs none."""
    needs: dict[CountKey, set[CountKey]] = {}
    for rows in _stages(live):
        keys = {step.row.out.id: step.key for step in rows.steps}
        for step in rows.steps:
            read = {value.id for row in step.rows for value in row.reads}
            needs.setdefault(step.key, set()).update(keys[number] for number in read & keys.keys())
    rounds: dict[CountKey, int] = {}

    def round_of(key: CountKey) -> int:
        if key not in rounds:
            rounds[key] = 1 + max((round_of(other) for other in needs[key]), default=-1)
        return rounds[key]

    return {key: round_of(key) for key in needs}


def _stages(live: Sequence[LivePipeline]) -> Iterator[StageRows]:
    return (rows for pipeline in {id(found): found for found in live}.values() for rows in pipeline.stages)


def in_order(steps: Sequence[StepValue]) -> list[StepValue]:
    """Sums in the order in which all ranks reduce them."""
    return sorted(steps, key=lambda step: step.key)


def _circular(pipelines: Sequence[LivePipeline]) -> DeduceError:
    where = [item.row.where for rows in _stages(pipelines) for item in rows.sums]
    return DeduceError(
        "pipelines come to the sums over the batch in different orders",
        at=list(dict.fromkeys(where)),
        rule="a sum over the batch that one pipeline makes of another sum is not made before it elsewhere",
        fix="give the pipelines equal stages, and report this model and strategy",
    )


def levels_text(
    live: Sequence[LivePipeline], levels: BatchLevels, groups: Mapping[CountKey, tuple[int, ...]]
) -> str:
    """The levels of passes, and of each sum over the batch when and by whom it is added up."""
    lines: list[Line] = [("levels", f"{levels.last + 1}"), ("backward from level", f"{levels.turn}")]
    for key, group in groups.items():
        at = f"at level {levels.sums[key]}" if key in levels.sums else f"before, round {levels.rounds[key]}"
        lines.append((f"sum {key}", at, f"ranks {list(group)}"))
    if levels.last:
        for title, held in alike(live):
            for number, rows in enumerate(held.stages):
                for row in (*rows.forward, *rows.backward):
                    phase, level = levels.part(rows, row)
                    lines.append((f"{title}, stage {number}", f"{phase.value} {level}", *row_cells(row)))
    return joined(lines)


@dataclass(frozen=True, slots=True)
class Levels(Pass[Gathered, Levelled]):
    """Without sums over the batch everything is one level."""

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
