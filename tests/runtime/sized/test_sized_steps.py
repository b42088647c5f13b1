"""Engines take steps of any sizes from one program: each equals one eager call on its whole batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.errors import RunError
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.program.sized.sizes import Count
from hspmd_compiler.program.sized.step_plan import StepPlan
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.strategy.strategy import Strategy
from tests.passes.sized_cases import SizedCase, planned
from tests.passes.test_sized import PIECES, UNEQUAL, Packed, numbers, packed
from tests.training.training_cases import Mlp

from .trained_steps import Given, check_training, train_in_threads

CONFIG = OptimizerConfig(name=OptimizerName.ADAMW, lr=0.01, max_grad_norm=0.5)
ROWS = (
    (([1, 7, 7], [3]), {}),
    (([], [9]), {}),
    (([40, 2], [1, 2, 3]), {}),
    (([12], []), {"cuts": ((0, 12), (0, 12, 0))}),
)
Rank = Callable[[int, Engine, Given], Given]


@cache
def samples() -> SizedCase:
    torch.manual_seed(0)
    loss = nn.functional.mse_loss
    return SizedCase.of(lambda: Mlp(loss), lambda _: numbers(2, loss), UNEQUAL, Count.SAMPLES, 64)


def steps_of_samples(*steps: tuple[list[int], list[int]]) -> list[Given]:
    """Batches of so many samples, by micro-batch of each pipeline."""
    made: list[Given] = []
    for pipelines in steps:
        plan, total = planned(Count.SAMPLES, *pipelines)
        batch = numbers(total, nn.functional.mse_loss)
        made.append((plan, {name: value.double() for name, value in batch.items()}))
    return made


def test_steps_of_any_number_of_samples() -> None:
    case = samples()
    steps = steps_of_samples(([1, 7, 7], [3]), ([], [4]), ([64], [1, 2, 3]), ([2], []), ([1, 7, 7], [3]))
    found = train_in_threads(case.program, case.state, steps, CONFIG)
    check_training(case.build, case.state, steps, CONFIG, found)


@pytest.mark.parametrize("zero", [0, pytest.param(1, marks=pytest.mark.slow), 2, 3])
def test_steps_of_packed_rows(zero: int) -> None:
    """Cuts of tokens even or not, or empty; a pipeline with nothing to do."""
    torch.manual_seed(0)
    strategy = Strategy(PIECES.pipelines, sequence_parallel=True, zero=zero)
    case = SizedCase.of(Packed, lambda tokens: packed(5, tokens - 5, rows=2), strategy, Count.TOKENS, 200)
    steps: list[Given] = []
    for pipelines, sizes in ROWS:
        plan, _ = planned(Count.TOKENS, *pipelines, **sizes)
        steps.append((plan, packed(*pipelines[0], *pipelines[1])))
    found = train_in_threads(case.program, case.state, steps, CONFIG)
    check_training(case.build, case.state, steps, CONFIG, found)


def test_ranks_that_bring_their_own_rows() -> None:
    """Only those, one micro-batch after the other; in the step's order of all."""
    case = samples()

    def own(rank: int, engine: Engine, step: Given) -> Given:
        plan, batch = step
        assert plan is not None
        rows = plan.pipelines[engine.rank_program.pipeline]
        taken = [index for micro in rows for index in range(micro.first, micro.first + micro.samples)]
        return plan, {key: batch[key][taken] for key in engine.keys}

    steps = steps_of_samples(([1, 7, 7], [3]), ([5], []))
    found = train_in_threads(case.program, case.state, steps, CONFIG, own, local=True)
    check_training(case.build, case.state, steps, CONFIG, found)


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: None,
        lambda plan: StepPlan((plan.pipelines[0][::-1], plan.pipelines[1])),
        lambda plan: StepPlan(((replace(plan.pipelines[0][0], first=1),), *plan.pipelines[1:])),
    ],
)
def test_unlike_plans_are_one_error_on_all_ranks(change: Callable[[StepPlan], StepPlan | None]) -> None:
    """Before anything is exchanged whose size a plan says; the next step of like plans is right."""
    case, told = samples(), []

    def given(rank: int, engine: Engine, step: Given) -> Given:
        plan, batch = step
        assert plan is not None
        with pytest.raises(RunError) as error:
            engine.step(batch, change(plan) if rank == 2 else plan)
        told.append(str(error.value))
        return step

    steps = steps_of_samples(([1, 7, 7], [3]))
    found = train_in_threads(case.program, case.state, steps, CONFIG, given)
    check_training(case.build, case.state, steps, CONFIG, found)
    assert len(set(told)) == 1 and len(told) == 4
    assert "the ranks have different settings in step 1" in told[0] and "plan" in told[0]


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda plan, batch: (None, batch), "a step needs a plan"),
        (
            lambda plan, batch: (planned(Count.SAMPLES, [65], [])[0], batch),
            "65: the program was compiled for",
        ),
        (lambda plan, batch: (planned(Count.SAMPLES, [3])[0], batch), "the plan of another strategy"),
        (lambda plan, batch: (plan, {"x": batch["x"][1:], "y": batch["y"]}), "wanted float64[18, "),
    ],
)
def test_what_a_step_refuses(spoil: Callable[[StepPlan, dict[str, Tensor]], Given], told: str) -> None:
    case = samples()
    steps = steps_of_samples(([1, 7, 7], [3]))

    def given(rank: int, engine: Engine, step: Given) -> Given:
        plan, batch = step
        assert plan is not None
        given_plan, spoilt = spoil(plan, batch)
        with pytest.raises(RunError, match=told.replace("[", r"\[")):
            engine.step(spoilt, given_plan)
        return step

    train_in_threads(case.program, case.state, steps, CONFIG, given)
