"""Every schedule trains like one device: those that a strategy names, and texts drawn at random."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import pytest

from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.pages.schedule_page import schedule_lines, stages_of
from hspmd_compiler.program.check import check
from hspmd_compiler.strategy.schedules.schedule_time import grid
from hspmd_compiler.strategy.strategy import PipelineSpec, ScheduleKind, StageSpec, Strategy
from hspmd_compiler.verify.eager import whole_state
from hspmd_compiler.verify.reference import Reference
from hspmd_compiler.verify.training import compare_training

from ..fit import check_fit
from .drawn_schedules import drawn_schedule
from .training_cases import FIRST, SECOND, SUBJECTS, graph_of, program_for

STEPS = 2
ADAMW = OptimizerConfig(lr=1e-2, eps=1e-4, weight_decay=0.1)
PIPELINES = (
    PipelineSpec((StageSpec((0, 1), FIRST), StageSpec((2,), SECOND)), (2, 1, 2)),
    PipelineSpec((StageSpec((3, 4), FIRST), StageSpec((5,), SECOND)), (1, 3, 1)),
)


@cache
def reference() -> Reference:
    build = SUBJECTS["mlp-ce"].build
    state = {name: value.detach().clone() for name, value in whole_state(build()).items()}
    return Reference(build, state, None)


def train(strategy: Strategy) -> None:
    """Losses, gradients and parameters are one device's; the ranks run the schedule that they should."""
    program = program_for(graph_of("mlp-ce"), strategy)
    check(program)
    check_fit(program)
    batches = [SUBJECTS["mlp-ce"].batch(step) for step in range(STEPS)]
    compare_training(program, reference(), batches, ADAMW)
    for number in range(len(strategy.pipelines)):
        lines = schedule_lines(stages_of(program, number))
        assert lines == grid(strategy.schedule_of(number)).splitlines()


@pytest.mark.parametrize("kind", [kind for kind in ScheduleKind if kind is not ScheduleKind.AUTO])
@pytest.mark.parametrize("zero", [0, 3])
def test_every_named_schedule_is_exact(kind: ScheduleKind, zero: int) -> None:
    train(Strategy(PIPELINES, schedule=kind, zero=zero))


@pytest.mark.parametrize(("zero", "same"), [(0, False), (2, False), (3, False), (3, True)])
@pytest.mark.parametrize("seed", range(2))
def test_schedules_by_hand_are_exact(zero: int, same: bool, seed: int) -> None:
    """The same or another one for each pipeline: only with the same does ZeRO-3 gather inside."""
    random = Random(seed)
    schedules = [drawn_schedule(random, 2, 3) for _ in PIPELINES]
    own = schedules[:1] * 2 if same else schedules
    pipelines = tuple(replace(p, schedule=each) for p, each in zip(PIPELINES, own, strict=True))
    train(Strategy(pipelines, zero=zero))
