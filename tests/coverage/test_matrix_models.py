"""The models of the matrix: README's cells, and every operator by brute force, as the model calls it.

In one file, so that one process traces each model once.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from hspmd_compiler.coverage import matrix
from hspmd_compiler.coverage.model import CoveredModel
from hspmd_compiler.coverage.registry import MODELS
from hspmd_compiler.coverage.strategies import COLUMNS, Column
from hspmd_compiler.coverage.table import markdown
from hspmd_compiler.errors import HspmdError
from hspmd_compiler.rules.rules import RULES
from hspmd_compiler.verify.rules.split_operator import UNDEFINED, check
from hspmd_compiler.verify.widen import default_type

from ..rules.test_rules_brute_force import BY_OP, WAYS, describe
from .single_rows import GETITEM, PLACEHOLDER, SingleRow, single_rows, split_row
from .traces import traced

THOROUGH = 30
README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README[README.index("## Models\n") :].partition("\n## ")[0].splitlines()
TABLE = [line for line in SECTION if line.startswith("|")]
NOTES = [line for line in SECTION if line.startswith("- ")]
WHOLE_ROWS = ("ResNet",)
"""Models of which the quick run has all cells; of the others it has the last, in which most meets."""
QUICK_NAMES = ("Llama", "Whisper", "MLP", "ResNet", "diffusion U-Net")
"""Causal, of two stacks, and convolutional ones. The slow run has the others."""
QUICK = [
    pytest.param(model, marks=() if model.name in QUICK_NAMES else pytest.mark.slow, id=model.name)
    for model in MODELS
]


def notes_of(model: CoveredModel) -> Iterator[str]:
    """README's reasons for cells of a model that are not exact."""
    yield from (line for line in NOTES if line.startswith(f"- {model.name} ("))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_model_has_a_row_and_every_strategy_a_meaning() -> None:
    assert [cells(line)[0] for line in TABLE[2:]] == [model.name for model in MODELS]
    assert cells(TABLE[0])[1:] == [column.name for column in COLUMNS]
    assert set(NOTES) - {note for model in MODELS for note in notes_of(model)} == {
        f"- {column.name}: {column.meaning}" for column in COLUMNS
    }


@pytest.mark.parametrize("model", QUICK)
def test_the_cell_where_most_meets(model: CoveredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    check_row(model, COLUMNS[-1:], monkeypatch)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=() if model.name in WHOLE_ROWS else pytest.mark.slow, id=model.name)
        for model in MODELS
    ],
)
def test_the_row_is_what_the_command_finds(model: CoveredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    check_row(model, COLUMNS, monkeypatch)


def check_row(model: CoveredModel, columns: Sequence[Column], monkeypatch: pytest.MonkeyPatch) -> None:
    """README's cells of a model in these columns, and its reasons."""
    monkeypatch.setattr(matrix, "trace_model", traced)
    _, _, row, *notes = markdown(list(matrix.run_matrix([model], columns))).splitlines()
    name, *shown = cells(TABLE[2 + MODELS.index(model)])
    assert cells(row) == [name, *(shown[COLUMNS.index(column)] for column in columns)]
    assert set(notes[1:]) <= set(notes_of(model))


@pytest.mark.parametrize("model", QUICK)
def test_every_operator_has_a_rule_and_a_case(model: CoveredModel) -> None:
    """Of its own: none is merely computed whole. The cases: tests/rules/test_rules_brute_force.py."""
    ops = {row.op for row in traced(model).graph.rows} - {PLACEHOLDER, GETITEM}
    assert len(ops) > 10
    assert ops - set(RULES) == set()
    assert ops - set(BY_OP) == set()


@pytest.mark.parametrize("model", QUICK)
def test_rows_split_equal_whole(model: CoveredModel) -> None:
    """Every row of the model's graph that differs from the others, by itself, at its own sizes."""
    try_rows(model, len(WAYS))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_rows_split_equal_whole_more_often(model: CoveredModel) -> None:
    try_rows(model, THOROUGH)


def try_rows(model: CoveredModel, tries: int) -> None:
    draws = random.Random(zlib.crc32(f"{model.name} {tries}".encode()))
    for single in single_rows(traced(model)):
        for number in range(tries):
            try_row(single, draws.randrange(2**32), WAYS[number % len(WAYS)])


def try_row(single: SingleRow, seed: int, ways: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    sketch = split_row(single, rng, ways)
    if single.row.op in UNDEFINED:
        return
    try:
        with default_type(torch.float64):
            check(sketch)
    except HspmdError as error:
        raise AssertionError(f"seed {seed}: {error.text()}\n{describe(sketch)}") from error
    except Exception as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{describe(sketch)}") from error
