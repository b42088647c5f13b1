"""Schedules of processes over gloo: equal to eager, with receives that are posted ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import hspmd_compiler as hspmd
from hspmd_compiler.strategy.schedules.schedule_text import read_schedule
from hspmd_compiler.strategy.strategy import PipelineSpec, ScheduleKind, StageSpec, Strategy

from .test_end_to_end_gloo import CONFIG, train_like_eager
from .training_cases import ALL, FIRST, SECOND, SUBJECTS

PIPELINES = (
    PipelineSpec((StageSpec((0,), FIRST), StageSpec((1, 2), SECOND)), (2, 1, 2)),
    PipelineSpec((StageSpec((3,), ALL),), (3, 2)),
)
TEXT = "0F0 0F1 0F2 0B0 0W0 0B1 0B2 0W1 0W2\n1F0 1B0 1F1 1B1 1W0 1F2 1B2 1W1 1W2\n"


def compiled(strategy: Strategy, to: Path) -> Path:
    made = SUBJECTS["llama"]
    program = hspmd.compile(lambda: (made.build(), made.batch(0)), strategy=strategy, optimizer=CONFIG)
    program.save(to)
    return to


def by_hand() -> Strategy:
    schedule, problems = read_schedule(TEXT)
    assert not problems
    return Strategy((replace(PIPELINES[0], schedule=schedule), PIPELINES[1]), receives_ahead=3)


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(PIPELINES, schedule=ScheduleKind.ZB_H1, zero=2, receives_ahead=2),
        pytest.param(by_hand(), marks=pytest.mark.slow),
        pytest.param(Strategy(PIPELINES, receives_ahead=0), marks=pytest.mark.slow),
    ],
    ids=["zb-h1", "by hand", "none ahead"],
)
def test_processes_train_like_eager(strategy: Strategy, tmp_path: Path) -> None:
    train_like_eager("llama", compiled(strategy, tmp_path / "artifact"))
