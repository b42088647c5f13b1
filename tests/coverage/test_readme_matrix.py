"""README's matrix is what `hspmd coverage` finds: every row is run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hspmd_compiler.coverage import matrix
from hspmd_compiler.coverage.model import CoveredModel
from hspmd_compiler.coverage.registry import MODELS
from hspmd_compiler.coverage.strategies import COLUMNS
from hspmd_compiler.coverage.table import markdown

from .traces import traced

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README[README.index("## Models\n") :].partition("\n## ")[0].splitlines()
TABLE = [line for line in SECTION if line.startswith("|")]
NOTES = [line for line in SECTION if line.startswith("- ")]


def notes_of(model: CoveredModel) -> Iterator[str]:
    """README's reasons for cells of a model that are not exact."""
    yield from (line for line in NOTES if line.startswith(f"- {model.name} ("))


def test_every_model_has_a_row_and_every_strategy_a_meaning() -> None:
    assert [line.split(" | ")[0] for line in TABLE[2:]] == [f"| {model.name}" for model in MODELS]
    assert set(NOTES) - {note for model in MODELS for note in notes_of(model)} == {
        f"- {column.name}: {column.meaning}" for column in COLUMNS
    }


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_row_is_what_the_command_finds(model: CoveredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "trace_model", traced)
    head, line, row, *notes = markdown(list(matrix.run_matrix([model], COLUMNS))).splitlines()
    assert [head, line] == TABLE[:2]
    assert row == TABLE[2 + MODELS.index(model)]
    assert notes[1:] == list(notes_of(model))
