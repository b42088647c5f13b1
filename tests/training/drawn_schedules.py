"""Schedules of one pipeline, drawn at random: whatever a stage could run next, it may."""

from __future__ import annotations

from random import Random

from hspmd_compiler.base.pipeline_schedule import Action, ActionKind, PipelineSchedule


def drawn_schedule(random: Random, stages: int, micro_batches: int) -> PipelineSchedule:
    """One that nobody waits for ever in, since it is the record of a run."""
    rows: list[list[Action]] = [[] for _ in range(stages)]
    done = {kind: [0] * stages for kind in ActionKind}
    while ready := [place for place in _places(stages) if _is_ready(*place, done, micro_batches)]:
        stage, kind = random.choice(ready)
        rows[stage].append(Action(kind, done[kind][stage]))
        done[kind][stage] += 1
    return PipelineSchedule(tuple(map(tuple, rows)))


def _places(stages: int) -> list[tuple[int, ActionKind]]:
    return [(stage, kind) for stage in range(stages) for kind in ActionKind]


def _is_ready(stage: int, kind: ActionKind, done: dict[ActionKind, list[int]], micro_batches: int) -> bool:
    count = done[kind][stage]
    if kind is ActionKind.FORWARD:
        return count < (micro_batches if stage == 0 else done[kind][stage - 1])
    last = stage == len(done[kind]) - 1
    return count < (done[ActionKind.FORWARD][stage] if last else done[kind][stage + 1])
