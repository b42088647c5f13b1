"""Schedules of devices in several stages: valid however these lie, texts both ways, shorter than 1F1B."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.base.pipeline_schedule import Lanes, PipelineSchedule, ScheduleKind, build_schedule
from hspmd_compiler.errors import StrategyError
from hspmd_compiler.strategy.check import check
from hspmd_compiler.strategy.form import form_of, strategy_from
from hspmd_compiler.strategy.schedules.interleaved import interleave, most_held
from hspmd_compiler.strategy.schedules.schedule_check import schedule_problems
from hspmd_compiler.strategy.schedules.schedule_text import read_schedule
from hspmd_compiler.strategy.schedules.schedule_time import grid, simulate
from hspmd_compiler.strategy.strategy import PipelineSpec, SizesSpec, StageSpec, Strategy

ONE, GPIPE = ScheduleKind.ONE_F_ONE_B, ScheduleKind.GPIPE
RING: Lanes = ((0, 2), (1, 3))


def ring(devices: int, each: int) -> Lanes:
    return tuple(tuple(range(first, devices * each, devices)) for first in range(devices))


@st.composite
def drawn_lanes(draw: st.DrawFn) -> Lanes:
    owners = draw(st.lists(st.integers(0, 3), min_size=1, max_size=7))
    lanes: dict[int, list[int]] = {}
    for stage, owner in enumerate(owners):
        lanes.setdefault(owner, []).append(stage)
    return tuple(map(tuple, lanes.values()))


@given(drawn_lanes(), st.integers(1, 9), st.sampled_from([ONE, GPIPE]))
@settings(max_examples=40, deadline=None)
def test_any_stages_on_any_devices_have_a_schedule(lanes: Lanes, count: int, kind: ScheduleKind) -> None:
    schedule = interleave(kind, lanes, count)
    assert not schedule_problems(schedule, count)
    assert read_schedule(schedule.text(), lanes) == (schedule, [])


@pytest.mark.parametrize(("devices", "each", "count"), [(2, 2, 4), (4, 2, 8), (4, 3, 8), (3, 2, 18)])
def test_interleaved_1f1b_idles_as_published(devices: int, each: int, count: int) -> None:
    schedule = interleave(ONE, ring(devices, each), count)
    wanted = (devices - 1) / (each * count + devices - 1)
    assert simulate(schedule).bubble_fraction == pytest.approx(wanted)
    plain = simulate(build_schedule(ONE, devices, count)).bubble_fraction
    assert simulate(schedule).bubble_fraction < plain
    assert most_held(schedule) < most_held(interleave(GPIPE, ring(devices, each), count))


def test_a_v_idles_less_than_1f1b() -> None:
    schedule = interleave(ONE, ((0, 3), (1, 2)), 4)
    assert simulate(schedule).bubble_fraction < simulate(build_schedule(ONE, 2, 4)).bubble_fraction


def test_the_grid_has_a_row_for_devices_and_tells_stages() -> None:
    text = "0F0 2F0 2B0 0B0\n1F0 3F0 3B0 1B0\n"
    schedule, problems = read_schedule(text, RING)
    assert not problems and schedule.text() == text
    assert grid(schedule).splitlines()[1:] == [
        "stages 0 2 0F0 .   2F0 .   .   .   2B0 -   .   .   0B0 -",
        "stages 1 3 .   1F0 .   3F0 3B0 -   .   .   1B0 -   .   .",
        "bubble 50.0% of 12 time units",
    ]


def test_devices_that_wait_for_ever_are_named() -> None:
    schedule, _ = read_schedule("2F0 0F0 2B0 0B0\n1F0 3F0 3B0 1B0\n", RING)
    assert schedule_problems(schedule, 1) == [
        ("stage 2", "2F0 waits for ever for 1F0"),
        ("stage 1", "1F0 waits for ever for 0F0"),
    ]
    wrong = PipelineSchedule(schedule.stages, ((0, 2, 0, 0), schedule.lanes[1]))
    assert [where for where, _ in schedule_problems(wrong, 1)] == ["devices"]


def test_words_of_other_devices_and_missing_lines_are_refused() -> None:
    _, problems = read_schedule("0F0 1F0 2F0 2B0 0B0\n", RING)
    assert problems == [
        ("devices", "1 lines: one for each of 2 sets of devices"),
        ("stages 0 and 2", "'1F0': the line of stages 0 and 2 holds their actions only"),
    ]


def two(*more: StageSpec, schedule: PipelineSchedule | None = None) -> Strategy:
    stages = (StageSpec((0,), (0, 1)), StageSpec((1,), (1, 2)), StageSpec((0,), (2, 3)), *more)
    return Strategy((PipelineSpec(stages, (1, 1), schedule=schedule),))


def test_a_strategy_of_several_stages_reads_back() -> None:
    text = "0F0 2F0 2B0 0B0 0F1 2F1 2B1 0B1\n1F0 1B0 1F1 1B1\n"
    schedule, _ = read_schedule(text, ((0, 2), (1,)))
    for strategy in (two(), two(schedule=schedule)):
        check(strategy)
        assert strategy_from(form_of(strategy)) == strategy
        assert strategy.devices == (0, 1) and strategy.world_size == 2


@pytest.mark.parametrize(
    ("strategy", "line"),
    [
        (two(StageSpec((1, 2), (3, 4))), "1: pipelines[0].stages[1] has it too: stages of a pipeline have"),
        (replace(two(), pipelines=two().pipelines * 2), "0: used once only"),
        (replace(two(), zero=2), "2: devices run several stages of a pipeline, which hand over gradients"),
        (replace(two(), schedule=ScheduleKind.ZB_H1), "zb-h1: devices run several stages of a pipeline"),
        (replace(two(), bucket_bytes=8), "8: devices run several stages of a pipeline, which sum gradients"),
        (replace(two(), sizes=SizesSpec(samples=(1, 2))), "given: devices run several stages of a pipeline"),
        (
            two(schedule=build_schedule(ONE, 3, 2)),
            "its lines are not those of the devices: of stages 0 and 2",
        ),
        (two(StageSpec((1,), (3, 4), zero_shares=(2,))), "stage 1 has the same devices, of one weight each"),
    ],
)
def test_what_is_not_done_is_refused_by_name(strategy: Strategy, line: str) -> None:
    with pytest.raises(StrategyError) as refused:
        check(strategy)
    assert line in str(refused.value)
