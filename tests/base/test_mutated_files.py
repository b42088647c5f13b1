"""Files changed at random are taken, or refused in our words: no hang, no foreign code, no error of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.base.mutated_files import run


@pytest.mark.parametrize(
    ("count", "seed"),
    [(100, 5), *(pytest.param(1000, seed, marks=pytest.mark.slow) for seed in (6, 77, 201))],
)
def test_changed_files(count: int, seed: int, tmp_path: Path) -> None:
    outcomes, bad = run(count, seed, tmp_path)
    assert not bad, "\n".join(bad)
    assert outcomes["refused"] and sum(outcomes.values()) == count
