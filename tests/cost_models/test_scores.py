"""The figures that tables of prices show."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    from truth import scores as module

    return module


def test_a_score_by_hand(scores: ModuleType) -> None:
    found = scores.score([(1.1, 1.0), (1.8, 2.0), (3.0, 3.0)])
    assert found.mape == pytest.approx(0.2 / 3)
    assert found.worst == pytest.approx(0.1)
    assert found.bias == pytest.approx(0.0)
    assert found.rank == 1.0


def test_ranks_with_ties(scores: ModuleType) -> None:
    """Spearman's rho with mean ranks: 1, 2.5, 2.5, 4 against 1, 2, 3, 4."""
    pairs = [(1.0, 1.0), (2.0, 2.0), (2.0, 3.0), (5.0, 4.0)]
    assert scores.spearman(pairs) == pytest.approx(4.5 / (4.5 * 5.0) ** 0.5)
    assert scores.spearman([(2.0, 1.0), (1.0, 2.0)]) == -1.0
