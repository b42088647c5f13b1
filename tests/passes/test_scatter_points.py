"""Meetings in the middle of schedules: equally many for all pipelines, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.base.pipeline_schedule import (
    Action,
    ActionKind,
    PipelineSchedule,
    build_schedule,
    scatter_points,
)
from hspmd_compiler.strategy.schedules.meetings import meeting_problems
from hspmd_compiler.strategy.schedules.schedule_check import schedule_problems
from hspmd_compiler.strategy.strategy import ScheduleKind

from ..training.drawn_schedules import drawn_schedule

MEETING = None
Item = Action | None
Done = set[tuple[int, Action]]


def items(schedule: PipelineSchedule, points: Collection[int]) -> list[list[Item]]:
    """Per stage its actions, a meeting behind the backward passes of these micro-batches and the last."""
    every = {*points, schedule.num_micro_batches - 1}
    found: list[list[Item]] = []
    for stage, row in enumerate(schedule.stages):
        last = schedule.ends_with(stage)
        found.append([])
        for action in row:
            found[-1].append(action)
            if action.kind is last and action.micro_batch in every:
                found[-1].append(MEETING)
    return found


def can_run(action: Action, stage: int, stages: int, done: Done) -> bool:
    """Whether what the action reads of the neighbour has been sent."""
    if action.kind is ActionKind.WEIGHTS:
        return True  # its backward pass stands before it
    forward = action.kind is ActionKind.FORWARD
    neighbour = stage - 1 if forward else stage + 1
    return not 0 <= neighbour < stages or (neighbour, action) in done


def finishes(pipelines: Sequence[list[list[Item]]]) -> bool:
    """Whether all stages of all pipelines reach their ends, where all of them take part in each meeting."""
    left = [[list(row) for row in pipeline] for pipeline in pipelines]
    done: list[Done] = [set() for _ in pipelines]
    while any(row for pipeline in left for row in pipeline):
        moved = False
        for pipeline, sent in zip(left, done, strict=True):
            for stage, row in enumerate(pipeline):
                while row and row[0] is not MEETING and can_run(row[0], stage, len(pipeline), sent):
                    sent.add((stage, row.pop(0)))
                    moved = True
        if all(row and row[0] is MEETING for pipeline in left for row in pipeline):
            for row in (row for pipeline in left for row in pipeline):
                row.pop(0)
            moved = True
        if not moved:
            return False
    return True


shapes = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=4)


@settings(max_examples=200, deadline=None)
@given(shapes, st.sampled_from(ScheduleKind))
def test_pipelines_of_any_depth_and_length_get_through(
    pipelines: list[tuple[int, int]], kind: ScheduleKind
) -> None:
    counts = [count for _, count in pipelines]
    points = scatter_points(counts)
    assert {len(each) for each in points} == {min(counts) - 1}
    assert all(0 <= point < count - 1 for each, count in zip(points, counts, strict=True) for point in each)
    schedules = [build_schedule(kind, stages, count) for stages, count in pipelines]
    assert finishes([items(each, at) for each, at in zip(schedules, points, strict=True)])


@settings(max_examples=200, deadline=None)
@given(shapes, st.integers(0, 1 << 30))
def test_so_do_pipelines_of_schedules_by_hand(pipelines: list[tuple[int, int]], seed: int) -> None:
    random = Random(seed)
    schedules = [drawn_schedule(random, stages, count) for stages, count in pipelines]
    counts = [count for _, count in pipelines]
    for schedule, count in zip(schedules, counts, strict=True):
        assert not schedule_problems(schedule, count)
    points = scatter_points(counts)
    assert finishes([items(each, at) for each, at in zip(schedules, points, strict=True)])


@settings(max_examples=300, deadline=None)
@given(shapes, st.integers(0, 1 << 30))
def test_weights_that_are_left_for_too_long_are_told(pipelines: list[tuple[int, int]], seed: int) -> None:
    """Schedules that the rule lets pass get through; one that it refuses does not, beside any other."""
    random = Random(seed)
    schedules = [drawn_schedule(random, stages, count, splits=True) for stages, count in pipelines]
    counts = [count for _, count in pipelines]
    points = scatter_points(counts)
    bad = [[*meeting_problems(each, at)] for each, at in zip(schedules, points, strict=True)]
    assert finishes([items(each, at) for each, at in zip(schedules, points, strict=True)]) == (not any(bad))


@settings(max_examples=100, deadline=None)
@given(shapes)
def test_named_schedules_never_leave_them_for_too_long(pipelines: list[tuple[int, int]]) -> None:
    points = scatter_points([count for _, count in pipelines])
    for kind, ((stages, count), at) in product(ScheduleKind, zip(pipelines, points, strict=True)):
        assert not [*meeting_problems(build_schedule(kind, stages, count), at)]


def test_one_meeting_more_is_a_deadlock() -> None:
    """The check above can fail."""
    schedules = [build_schedule(ScheduleKind.ONE_F_ONE_B, 2, count) for count in (3, 3)]
    assert not finishes([items(schedules[0], {0}), items(schedules[1], {0, 1})])


@pytest.mark.parametrize(
    ("counts", "points"),
    [((3, 3), [{0, 1}] * 2), ((8, 2), [{3}, {0}]), ((5, 3), [{0, 2}, {0, 1}]), ((4, 1), [set(), set()])],
)
def test_meetings_are_spread_evenly(counts: tuple[int, ...], points: list[set[int]]) -> None:
    assert scatter_points(counts) == points
