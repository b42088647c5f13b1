"""The schedule of an artifact as grids over time, read back from the ranks' instructions."""

from __future__ import annotations

from ..artifact.store import Artifact
from ..base.pipeline_schedule import Action, ActionKind, PipelineSchedule, StageAction, of_lanes
from ..errors import ArtifactError
from ..program.program import Op, Program, RankProgram
from ..strategy.schedules.schedule_time import grid
from .sections import Listing, Section

KINDS = {
    Op.FORWARD: ActionKind.FORWARD,
    Op.BACKWARD: ActionKind.BACKWARD,
    Op.WEIGHTS: ActionKind.WEIGHTS,
}


def schedule_page(artifact: Artifact) -> list[Section]:
    """A grid per pipeline; backward takes twice the time of forward."""
    if artifact.manifest.rank is not None:
        raise ArtifactError(
            "the schedule needs the programs of all ranks",
            details=[("ranks", f"only {artifact.manifest.rank}")],
            fix="inspect an artifact that was compiled without --rank",
        )
    pages: list[Section] = []
    for pipeline in sorted({own.pipeline for own in artifact.program.ranks}):
        stages = stages_of(artifact.program, pipeline)
        lines = schedule_lines(stages)
        pages.append(Listing(f"pipeline {pipeline}", f"pipeline {pipeline}", tuple(lines)))
    return pages


def schedule_lines(stages: list[RankProgram]) -> list[str]:
    """A grid over time; where passes stop for sums over the batch, each stage's actions in order."""
    rows = tuple(map(_actions, stages))
    if any(own.segment_stages for own in stages):
        return grid(of_lanes(rows, sum(len(own.stages) for own in stages))).splitlines()
    if all(len(row) == len(set(row)) for row in rows):
        return grid(PipelineSchedule(tuple(tuple(each for _, each in row) for row in rows))).splitlines()
    return [f"stage {number}  {_in_order(own)}" for number, own in enumerate(stages)]


def _in_order(own: RankProgram) -> str:
    """`F0 F1 | F0 B0 F1 B1`: at the bar all ranks add up what the forward passes before it made."""
    begun, words = False, []
    for step in own.instructions:
        begun |= step.op in KINDS
        if step.op in KINDS:
            words.append(f"{KINDS[step.op].value}{step.mb}")
        elif begun and step.op is Op.STEP_REDUCE and words[-1] != "|":
            words.append("|")
    return " ".join(words)


def stages_of(program: Program, pipeline: int) -> list[RankProgram]:
    """One rank per stage, or per set of stages, in order: those of a stage run the same schedule."""
    first: dict[int, RankProgram] = {}
    for own in program.ranks:
        if own.pipeline == pipeline:
            first.setdefault(own.stage, own)
    return [first[stage] for stage in sorted(first)]


def _actions(own: RankProgram) -> tuple[StageAction, ...]:
    return tuple(
        (own.stage_of(step.segment), Action(KINDS[step.op], step.mb))
        for step in own.instructions
        if step.op in KINDS
    )
