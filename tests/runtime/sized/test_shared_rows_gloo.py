"""Processes over gloo that share rows of any length, cut anywhere in each step, beside eager."""

from __future__ import annotations

from pathlib import Path

import pytest

from hspmd_compiler.program.sized.sizes import Count
from hspmd_compiler.program.sized.step_plan import rows_of
from hspmd_compiler.runtime.engine import Engine
from tests.passes.test_shared_rows import CASES, batch_of, case, plan_of

from .processes import train_in_processes
from .test_sized_steps import CONFIG
from .trained_steps import Given, check_training, train_in_threads

STAGES = [
    ([(7, 30), (0, 9)], [11, 3]),
    ([], [40]),
    ([(13, 0)], []),
    ([(1, 127), (60, 2), (3, 3)], [5]),
]
MEMBERS = [([(1, 127, 900), (5, 0, 2)],), ([(0, 0, 4)],), ([(3, 4, 5)],)]
BALANCED = [([(1, 10, 2, 4, 5, 0), (0, 0, 2, 3, 0, 0)],), ([(40, 3, 7, 9, 0, 1)],)]


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("two stages, one beside", STAGES),
        pytest.param("ring", MEMBERS, marks=pytest.mark.slow),
        pytest.param("ring, balanced, tokens split", BALANCED, marks=pytest.mark.slow),
        pytest.param("heads, balanced", BALANCED, marks=pytest.mark.slow),
    ],
)
def test_processes_train_like_eager(name: str, taken: list[tuple[list[object], ...]], tmp_path: Path) -> None:
    found = case(name)
    steps: list[Given] = []
    for number, each in enumerate(taken):
        plan = plan_of(CASES[name], *each)  # type: ignore[arg-type]
        steps.append((plan, batch_of(plan, number)))
    trained = train_in_processes(found.program, found.state, steps, CONFIG, tmp_path)
    check_training(found.build, found.state, steps, CONFIG, trained)


def test_ranks_that_bring_their_own_rows() -> None:
    """A member brings whole rows, of which it takes its piece: documents are those of all of it."""
    name = "two stages, one beside"
    found, strategy = case(name), CASES[name]
    steps: list[Given] = []
    for taken in ([(7, 30), (0, 9)], [11, 3]), ([], [40]):
        plan = plan_of(strategy, *taken)  # type: ignore[arg-type]
        steps.append((plan, batch_of(plan)))

    def own(rank: int, engine: Engine, step: Given) -> Given:
        plan, batch = step
        assert plan is not None
        rows = [rows_of(micro, Count.TOKENS) for micro in plan.pipelines[engine.rank_program.pipeline]]
        taken = [at for low, high in rows for at in range(low, high)]
        return plan, {key: batch[key][:, taken] for key in engine.keys}

    trained = train_in_threads(found.program, found.state, steps, CONFIG, own, local=True)
    check_training(found.build, found.state, steps, CONFIG, trained)
