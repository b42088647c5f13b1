"""Engines take steps of any sizes from one program: each equals one eager call on its whole batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.errors import OptionError, RunError
from hspmd_compiler.options import OptimizerConfig, OptimizerName, Precision
from hspmd_compiler.program.sized.instantiate import instantiate
from hspmd_compiler.program.sized.sizes import Count
from hspmd_compiler.program.sized.step_plan import StepPlan
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.strategy.strategy import (
    PipelineSpec,
    Recompute,
    RecomputeKind,
    SizesSpec,
    StageSpec,
    Strategy,
)
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
SLOW = pytest.mark.slow
ONE = Strategy((PipelineSpec((StageSpec((0,), (0, 2)),), (1,)),))
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


def test_an_artifact_is_loaded_and_takes_steps_of_any_size(tmp_path: Path) -> None:
    """As its file tells it, by the call of the Python interface."""
    torch.manual_seed(0)
    loss = nn.functional.mse_loss
    program = hspmd.compile(
        Mlp(loss), numbers(2, loss), strategy=replace(ONE, sizes=SizesSpec(samples=(1, 64)))
    )
    program.save(tmp_path / "one")
    with hspmd.load(tmp_path / "one") as engine:
        for sizes in ([3, 1], [7]):
            plan, total = planned(Count.SAMPLES, sizes)
            batch = numbers(total, loss)
            model = Mlp(loss)
            model.load_state_dict(engine.state_dict())
            assert engine.step(batch, plan) == pytest.approx(float(model(**batch).detach()), rel=1e-5)


def test_steps_of_any_number_of_samples() -> None:
    case = samples()
    steps = steps_of_samples(([1, 7, 7], [3]), ([], [4]), ([64], [1, 2, 3]), ([2], []), ([1, 7, 7], [3]))
    found = train_in_threads(case.program, case.state, steps, CONFIG)
    check_training(case.build, case.state, steps, CONFIG, found)


@pytest.mark.parametrize("zero", [0, pytest.param(1, marks=SLOW), 2, 3])
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


@pytest.mark.parametrize("zero", [pytest.param(0, marks=SLOW), pytest.param(2, marks=SLOW), 3])
def test_a_step_has_the_bits_of_its_plain_program(zero: int) -> None:
    """In bfloat16, with activations computed again: those of the program of that step alone."""
    case = narrow_rows(zero)
    for pipelines, sizes in (*ROWS, ROWS[0]):
        plan, _ = planned(Count.TOKENS, *pipelines, **sizes)
        batch = packed(*pipelines[0], *pipelines[1])
        plain = instantiate(case.program, plan)
        wanted, after = train_in_threads(plain, case.state, [(None, batch)], CONFIG, widens=False)
        found, params = train_in_threads(case.program, case.state, [(plan, batch)], CONFIG, widens=False)
        assert (found[0].loss, found[0].norm) == (wanted[0].loss, wanted[0].norm)
        for one, other in ((found[0].grads, wanted[0].grads), (params, after)):
            assert one.keys() == other.keys()
            assert all(torch.equal(one[name], other[name]) for name in one)


def narrow_rows(zero: int) -> SizedCase:
    """Packed rows in bfloat16, whose first layer is computed again in the backward pass."""
    torch.manual_seed(0)
    first = replace(PIECES.pipelines[0], recompute=(Recompute((0, 1), RecomputeKind.SELECTIVE),))
    strategy = Strategy((first, *PIECES.pipelines[1:]), sequence_parallel=True, zero=zero)
    inputs = partial(packed_rows, 5)
    return SizedCase.of(Packed, inputs, strategy, Count.TOKENS, 200, precision=Precision.BFLOAT16)


def packed_rows(first: int, tokens: int) -> dict[str, Tensor]:
    return packed(first, tokens - first, rows=2)


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


def test_a_cut_that_one_transfer_can_not_take_is_refused_by_all_ranks() -> None:
    torch.manual_seed(0)
    case = SizedCase.of(Packed, partial(packed_rows, 5), PIECES, Count.TOKENS, 200)
    told = []

    def given(rank: int, engine: Engine, step: Given) -> Given:
        wrong, _ = planned(Count.TOKENS, [12], [], cuts=((12, 0), (5, 4, 3)))
        with pytest.raises(OptionError, match="the tokens of a micro-batch are cut unlike on two stages"):
            engine.step(packed(12), wrong)
        told.append(rank)
        return step

    steps: list[Given] = [(planned(Count.TOKENS, [7], [5])[0], packed(7, 5))]
    found = train_in_threads(case.program, case.state, steps, CONFIG, given)
    check_training(case.build, case.state, steps, CONFIG, found)
    assert sorted(told) == list(range(6))


@pytest.mark.parametrize("local", [False, True])
def test_a_document_cut_between_pipelines_is_refused_by_all_ranks(local: bool) -> None:
    """A rank whose own rows are whole refuses it too: none waits for another."""
    torch.manual_seed(0)
    case = SizedCase.of(Packed, partial(packed_rows, 5), PIECES, Count.TOKENS, 200)
    told = []

    def given(rank: int, engine: Engine, step: Given) -> Given:
        if not local or engine.rank_program.pipeline == 1:
            with pytest.raises(RunError, match="documents of position_ids are cut between rows"):
                refused = packed(12)
                plan, _ = planned(Count.TOKENS, [7], [5])
                engine.active.choose(plan)
                (engine.active.of_local if local else engine.active.of_global)(
                    {key: value[:, 7:] for key, value in refused.items()} if local else refused
                )
            told.append(rank)
        return step

    steps: list[Given] = [(planned(Count.TOKENS, [7], [5])[0], packed(7, 5))]
    found = train_in_threads(case.program, case.state, steps, CONFIG, given)
    check_training(case.build, case.state, steps, CONFIG, found)
    assert len(told) == (sum(own.pipeline == 1 for own in case.program.ranks) if local else 6)


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
