"""Processes over gloo that share rows of any length, cut anywhere in each step, beside eager."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.passes.test_shared_rows import CASES, batch_of, case, plan_of

from .processes import train_in_processes
from .test_sized_steps import CONFIG
from .trained_steps import Given, check_training

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
