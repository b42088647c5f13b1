"""Models beside those of the matrix are exact under its strategies, too."""

from __future__ import annotations

import pytest

from hspmd_compiler.coverage.matrix import Outcome, run_matrix
from hspmd_compiler.coverage.model import CoveredModel
from hspmd_compiler.coverage.strategies import COLUMNS

from .more_models import MORE_MODELS


@pytest.mark.slow
@pytest.mark.parametrize("model", MORE_MODELS, ids=lambda model: model.name)
def test_it_is_exact(model: CoveredModel) -> None:
    cells = list(run_matrix([model], COLUMNS))
    assert [cell.why for cell in cells] == [""] * len(COLUMNS)
    assert {cell.outcome for cell in cells} == {Outcome.EXACT}
