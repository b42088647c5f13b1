"""Processes over gloo take steps of any sizes from one program, as one eager call on each whole batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hspmd_compiler.program.sized.sizes import Count
from hspmd_compiler.program.sized.step_plan import StepPlan
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy
from tests.passes.sized_cases import SizedCase, planned
from tests.passes.test_sized import PIECES, UNEQUAL, Packed, packed

from .processes import train_in_processes
from .test_sized_steps import CONFIG, ROWS, narrow_rows, samples, steps_of_samples
from .trained_steps import Given, check_training, train_in_threads

BOTH = (0, 2)
TP = Strategy((P((S((0, 1, 2), BOTH),), (1,)),))
PP = Strategy((P((S((0,), (0, 1)), S((1,), (1, 2))), (1,)), P((S((2,), BOTH),), (1,))))


def rows_of(strategy: Strategy) -> tuple[SizedCase, list[Given]]:
    """A packed model, and steps of rows for as many pipelines as the strategy has."""
    torch.manual_seed(0)
    case = SizedCase.of(Packed, lambda tokens: packed(5, tokens - 5, rows=2), strategy, Count.TOKENS, 200)
    steps: list[Given] = []
    for pipelines, sizes in ROWS:
        given = pipelines[: len(strategy.pipelines)]
        if any(given) and (strategy.sequence_parallel or not sizes):
            plan, _ = planned(Count.TOKENS, *given, **sizes)
            steps.append((plan, packed(*(count for each in given for count in each))))
    return case, steps


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(TP, id="tp3", marks=pytest.mark.slow),
        pytest.param(PP, id="pp2-beside-1", marks=pytest.mark.slow),
        pytest.param(UNEQUAL, id="tp2-to-1-beside-1", marks=pytest.mark.slow),
        pytest.param(
            Strategy(PIECES.pipelines, sequence_parallel=True, bucket_bytes=3000),
            id="pieces",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Strategy(PIECES.pipelines, sequence_parallel=True, zero=1), id="zero1", marks=pytest.mark.slow
        ),
        pytest.param(
            Strategy(PIECES.pipelines, sequence_parallel=True, zero=2), id="zero2", marks=pytest.mark.slow
        ),
        pytest.param(Strategy(PIECES.pipelines, sequence_parallel=True, zero=3), id="zero3"),
    ],
)
def test_packed_rows(strategy: Strategy, tmp_path: Path) -> None:
    """The steps have a pipeline without work, cuts of tokens even and not, pieces without a token."""
    case, steps = rows_of(strategy)
    found = train_in_processes(case.program, case.state, steps, CONFIG, tmp_path)
    check_training(case.build, case.state, steps, CONFIG, found)


@pytest.mark.slow
def test_bfloat16_with_recompute(tmp_path: Path) -> None:
    """In double precision as eager; as it is, as threads that sum in another order."""
    case = narrow_rows(3)
    steps: list[Given] = [
        (planned(Count.TOKENS, *pipelines, **sizes)[0], packed(*pipelines[0], *pipelines[1]))
        for pipelines, sizes in ROWS
    ]
    found = train_in_processes(case.program, case.state, steps, CONFIG, tmp_path)
    check_training(case.build, case.state, steps, CONFIG, found)
    narrow, _ = train_in_processes(case.program, case.state, steps[:1], CONFIG, tmp_path, widens=False)
    wanted, _ = train_in_threads(case.program, case.state, steps[:1], CONFIG, widens=False)
    assert narrow[0].loss == pytest.approx(wanted[0].loss, rel=1e-2)
    assert {grad.dtype for grad in narrow[0].grads.values()} == {torch.float32}


def test_shortcuts_where_pieces_are_equal(tmp_path: Path) -> None:
    """Decided in each step, as its sizes are: a gather, or a scatter, of even cuts, not of uneven ones."""
    case, _ = rows_of(PIECES)
    steps: list[Given] = []
    for cuts in ((), ((5, 7), (4, 4, 4)), ((0, 12), (0, 12, 0)), ((6, 6), (4, 4, 4))):
        plan, _ = planned(Count.TOKENS, [12, 12], [7], cuts=cuts)
        first = StepPlan((plan.pipelines[0], (replace(plan.pipelines[1][0], cuts=()),)))
        steps.append((first, packed(12, 12, 7)))
    found = train_in_processes(case.program, case.state, steps, CONFIG, tmp_path, takes_shortcuts=True)
    check_training(case.build, case.state, steps, CONFIG, found)


@pytest.mark.slow
def test_samples(tmp_path: Path) -> None:
    case = samples()
    steps = steps_of_samples(([1, 7, 7], [3]), ([], [4]), ([64], [1, 2, 3]), ([2], []))
    found = train_in_processes(case.program, case.state, steps, CONFIG, tmp_path)
    check_training(case.build, case.state, steps, CONFIG, found)
