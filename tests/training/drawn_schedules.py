"""Schedules of one pipeline, drawn at random: whatever a stage could run next, it may."""

from __future__ import annotations

from random import Random

from hspmd_compiler.base.pipeline_schedule import Action, ActionKind, PipelineSchedule

WHOLE = (ActionKind.FORWARD, ActionKind.BACKWARD)
Done = dict[ActionKind, list[int]]


def drawn_schedule(
    random: Random, stages: int, micro_batches: int, splits: bool = False, most: int | None = None
) -> PipelineSchedule:
    """One that nobody waits for ever in, since it is the record of a run.

    splits: some stages, at random, leave gradients of weights to later; `most`: of so many micro-batches.
    """
    kinds = [tuple(ActionKind) if splits and random.random() < 0.7 else WHOLE for _ in range(stages)]
    rows: list[list[Action]] = [[] for _ in range(stages)]
    done: Done = {kind: [0] * stages for kind in ActionKind}
    places = [(stage, kind) for stage, own in enumerate(kinds) for kind in own]
    while ready := [
        place for place in places if _is_ready(*place, done, micro_batches, kinds[place[0]], most)
    ]:
        stage, kind = random.choice(ready)
        rows[stage].append(Action(kind, done[kind][stage]))
        done[kind][stage] += 1
    return PipelineSchedule(tuple(map(tuple, rows)))


def _is_ready(
    stage: int,
    kind: ActionKind,
    done: Done,
    micro_batches: int,
    own: tuple[ActionKind, ...],
    most: int | None,
) -> bool:
    count = done[kind][stage]
    if kind is ActionKind.FORWARD:
        return count < (micro_batches if stage == 0 else done[kind][stage - 1])
    if kind is ActionKind.WEIGHTS:
        return count < done[ActionKind.BACKWARD][stage]
    left = count - done[ActionKind.WEIGHTS][stage]
    if ActionKind.WEIGHTS in own and most is not None and left >= most:
        return False
    last = stage == len(done[kind]) - 1
    return count < (done[ActionKind.FORWARD][stage] if last else done[kind][stage + 1])
