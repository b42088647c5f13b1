"""The matrix of `hspmd coverage`: what is in it, what it says, and that it fails where a number is wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from hspmd_compiler.cli.main import main
from hspmd_compiler.coverage import matrix
from hspmd_compiler.coverage.hand_written_models import HAND_WRITTEN_MODELS, Classifier
from hspmd_compiler.coverage.matrix import MatrixCell, Outcome, run_matrix
from hspmd_compiler.coverage.model import SAMPLES, CoveredModel
from hspmd_compiler.coverage.registry import MODELS
from hspmd_compiler.coverage.strategies import COLUMNS, strategy_of
from hspmd_compiler.coverage.table import markdown
from hspmd_compiler.strategy.check import check

MLP = next(model for model in HAND_WRITTEN_MODELS if model.name == "MLP")


def test_names_are_unique() -> None:
    for names in ([model.name for model in MODELS], [column.name for column in COLUMNS]):
        assert len(set(names)) == len(names)


def test_batches_have_all_samples() -> None:
    for model in MODELS:
        batch = model.batch(torch.Generator().manual_seed(0))
        assert {len(tensor) for tensor in batch.values()} == {SAMPLES}, model.name


@pytest.mark.parametrize("layers", [0, 1, 2, 3, 4, 11])
def test_strategies_fit_any_number_of_layers(layers: int) -> None:
    for column in COLUMNS:
        strategy = strategy_of(column, layers, whole_statistics=False)
        check(strategy)
        assert (strategy.num_layers, strategy.global_batch) == (max(layers, 1), SAMPLES)
        joined = strategy_of(column, layers, whole_statistics=True)
        assert all(len(pipeline.micro_batches) == 1 for pipeline in joined.pipelines)


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", "--model", "mlp", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["strategy"] for cell in cells] == [column.name for column in COLUMNS]
    for cell in cells:
        assert cell["outcome"] == "exact"
        assert max(cell["loss"], cell["gradients"], cell["parameters"]) < 1e-10


def test_unknown_model_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", "--model", "no such model"]) == 2
    assert "MLP" in capsys.readouterr().err


class Doubled(Classifier):
    """Traced with one forward, compared with another: every number is wrong."""

    factor = 1.0

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().forward(x, y) * self.factor


def test_a_wrong_number_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    traced = matrix.trace_model(replace(MLP, build=Doubled))
    monkeypatch.setattr(Doubled, "factor", 1.0 + 1e-9)
    cell = matrix.run_cell(traced, COLUMNS[0])
    assert cell.outcome is Outcome.FAILED
    assert "loss of step 1" in cell.why


def test_a_failed_cell_is_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [MatrixCell("MLP", "TP 2", Outcome.FAILED, "VerifyError: wrong\n  at here")]
    monkeypatch.setattr(matrix, "run_matrix", lambda models, columns: iter(cells))
    assert main(["coverage", "--markdown"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "| model | TP 2 |",
        "| --- | --- |",
        "| MLP | FAILED |",
        "",
        "- MLP (TP 2): VerifyError: wrong",
    ]


def test_what_is_not_run_says_why() -> None:
    absent = CoveredModel("Absent", Classifier, MLP.batch, needs=("no_such_package",))
    left_out = replace(MLP, left_out={"TP 2": "no reason"})
    cells = list(run_matrix([absent, left_out], COLUMNS[:1]))
    assert [cell.outcome for cell in cells] == [Outcome.NOT_RUN, Outcome.NOT_RUN]
    assert markdown(cells).splitlines()[-2:] == [
        "- Absent (TP 2): no_such_package is not installed: install the extra `models`",
        "- MLP (TP 2): no reason",
    ]


def test_a_model_that_cannot_be_traced_fails() -> None:
    def build() -> nn.Module:
        return nn.Linear(3, 3)

    broken = replace(MLP, build=build)
    assert {cell.outcome for cell in run_matrix([broken], COLUMNS)} == {Outcome.FAILED}
