"""Pipeline schedules: equal to the published lists, text both ways, the grid, and deadlocks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hspmd_compiler.base.pipeline_schedule import Action, ActionKind, PipelineSchedule, build_schedule
from hspmd_compiler.errors import StrategyError
from hspmd_compiler.strategy.form import form_of, strategy_from
from hspmd_compiler.strategy.schedules.schedule_check import schedule_problems
from hspmd_compiler.strategy.schedules.schedule_text import read_schedule
from hspmd_compiler.strategy.schedules.schedule_time import grid, simulate
from hspmd_compiler.strategy.strategy import ScheduleKind

SIZES = [(1, 1), (1, 3), (2, 2), (3, 2), (4, 1), (4, 9), (5, 3)]


def test_one_f_one_b_is_the_published_list(reference: Path) -> None:
    """`bubble` entries of the list mark idle time, not an action; the grid shows idle time itself."""
    rows = json.loads((reference / "hspmd" / "golden_1f1b.json").read_text())["rows"]
    assert rows
    for row in rows:
        schedule = build_schedule(ScheduleKind.ONE_F_ONE_B, row["stages"], row["micro_batches"])
        for stage, actions in enumerate(schedule.stages):
            wanted = [task for task in row["tasks"][str(stage)] if task[0] != "bubble"]
            assert [[action.kind.value, action.micro_batch] for action in actions] == wanted


def test_small_schedules_are_as_written_down() -> None:
    assert build_schedule(ScheduleKind.ONE_F_ONE_B, 2, 3).text() == (
        "0F0 0F1 0B0 0F2 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2\n"
    )
    assert build_schedule(ScheduleKind.GPIPE, 2, 2).text() == "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n"


@pytest.mark.parametrize("kind", ScheduleKind)
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_built_schedules_are_valid_and_read_back(kind: ScheduleKind, stages: int, micro_batches: int) -> None:
    schedule = build_schedule(kind, stages, micro_batches)
    assert not schedule_problems(schedule, micro_batches)
    assert read_schedule(schedule.text()) == (schedule, [])
    assert (schedule.num_stages, schedule.num_micro_batches) == (stages, micro_batches)


@pytest.mark.parametrize("kind", [ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B])
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_the_bubble_is_the_known_one(kind: ScheduleKind, stages: int, micro_batches: int) -> None:
    """Both schedules idle (stages - 1) of (stages - 1 + micro-batches), whatever a pass costs."""
    schedule = build_schedule(kind, stages, micro_batches)
    wanted = (stages - 1) / (stages - 1 + micro_batches)
    assert simulate(schedule).bubble_fraction == pytest.approx(wanted)
    assert simulate(schedule, 3, 5).length == 8 * (stages - 1 + micro_batches)


def test_one_f_one_b_holds_fewer_micro_batches() -> None:
    def most_held(schedule: PipelineSchedule, stage: int) -> int:
        held = [1 if action.kind.value == "F" else -1 for action in schedule.stages[stage]]
        return max(sum(held[:end]) for end in range(len(held) + 1))

    ours, gpipe = (build_schedule(kind, 4, 9) for kind in (ScheduleKind.ONE_F_ONE_B, ScheduleKind.GPIPE))
    assert [most_held(ours, stage) for stage in range(4)] == [4, 3, 2, 1]
    assert [most_held(gpipe, stage) for stage in range(4)] == [9] * 4


def test_the_grid_is_pinned(expect: Callable[[str, str], None]) -> None:
    ours, gpipe = (build_schedule(kind, 3, 4) for kind in (ScheduleKind.ONE_F_ONE_B, ScheduleKind.GPIPE))
    expect("schedule/grid", f"1F1B\n{grid(ours)}\nGPipe\n{grid(gpipe)}\nequal costs\n{grid(ours, 1, 1)}")


def test_a_comment_and_blank_lines_are_no_stage() -> None:
    text = "# hand-written\n\n0F0 0F1 0B0 0B1  # first\n1F0 1B0 1F1 1B1\n"
    assert read_schedule(text) == (build_schedule(ScheduleKind.ONE_F_ONE_B, 2, 2), [])


def form(text: object) -> dict[str, object]:
    stages = [{"devices": [0], "layers": 1}, {"devices": [1], "layers": 1}]
    return {"pipelines": [{"stages": stages, "micro_batches": [2, 1], "schedule": text}]}


def test_a_strategy_takes_a_schedule_as_text_and_writes_it() -> None:
    text = "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n"
    strategy = strategy_from(form(text))
    assert strategy.schedule_of(0).text() == text
    assert strategy_from(form_of(strategy)) == strategy
    assert strategy_from(form(None)).schedule_of(0) == build_schedule(ScheduleKind.ONE_F_ONE_B, 2, 2)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deadlock", "0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1\n"),
        ("other_order", "0F0 0F1 0B1 0B0\n1F1 1B1 1F0 1B0\n"),
        ("unreadable", "0F0 0b0 x 1B0\n2F0 2B0\n"),
        ("misplaced", "0B0 0F0 0F0 0F2\n1F0 1B0 1B2 1F2\n"),
        ("empty", "# nothing\n"),
        ("weights", "0F0 0F1 0B0 0B1 0W0\n1F0 1W0 1B0 1F1 1B1 1W1\n"),
        ("no_text", ["0F0"]),
    ],
)
def test_a_bad_schedule_is_refused(name: str, text: object, expect: Callable[[str, str], None]) -> None:
    with pytest.raises(StrategyError) as caught:
        strategy_from(form(text))
    expect(f"schedule/{name}", str(caught.value))


def test_a_schedule_needs_stages_and_micro_batches() -> None:
    with pytest.raises(StrategyError, match="at least one stage and one micro-batch"):
        build_schedule(ScheduleKind.GPIPE, 0, 1)


ZB = ScheduleKind.ZB_H1


def test_zb_h1_leaves_weights_to_later() -> None:
    assert build_schedule(ZB, 3, 3).text() == (
        "0F0 0F1 0F2 0B0 0B1 0B2\n1F0 1F1 1B0 1F2 1B1 1W0 1B2 1W1 1W2\n2F0 2B0 2F1 2B1 2F2 2B2 2W0 2W1 2W2\n"
    )


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (3, 6), (4, 8), (6, 12)])
def test_zb_h1_idles_a_third_and_keeps_no_more_than_1f1b(stages: int, micro_batches: int) -> None:
    """Of 1F1B's (stages - 1) forwards and backwards, with three equal parts: one part is left."""
    ours, plain = (build_schedule(kind, stages, micro_batches) for kind in (ZB, ScheduleKind.ONE_F_ONE_B))
    assert simulate(ours).length == 3 * micro_batches + stages - 1
    assert simulate(plain).length == 3 * (micro_batches + stages - 1)
    held = [
        max(_held(row[:end], ours.ends_with(stage)) for end in range(len(row) + 1))
        for stage, row in enumerate(ours.stages)
    ]
    assert max(held) <= stages


def _held(row: Sequence[Action], last: ActionKind) -> int:
    """Micro-batches that have begun and are not through."""
    return sum((action.kind is ActionKind.FORWARD) - (action.kind is last) for action in row)
