"""benchmarks/plan_table.py: what a strategy names is kept by shrunken models; a plan is proved."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.slow
def test_shrunken_models_have_the_parameters_of_the_full_ones() -> None:
    models = import_module("planned_models").PLANNED_MODELS
    assert len({model.file_name for model in models}) == 9
    for model in models:
        with torch.device("meta"):
            full, small = model.full()[0], model.small()[0]
        assert [name for name, _ in full.named_parameters()] == [n for n, _ in small.named_parameters()]
        assert sum(p.numel() for p in small.parameters()) < 1e6 < sum(p.numel() for p in full.parameters())


def test_experts_on_all_tokens_are_mixtrals() -> None:
    from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralExperts

    torch.manual_seed(0)
    config = MixtralConfig(hidden_size=6, intermediate_size=5, num_local_experts=4)
    config._experts_implementation = "eager"
    experts = MixtralExperts(config).double()
    for weight in experts.parameters():
        nn.init.normal_(weight)
    x, shares = torch.randn(7, 6, dtype=torch.float64), torch.rand(7, 2, dtype=torch.float64)
    chosen = torch.stack([torch.randperm(4)[:2] for _ in range(7)])
    found = import_module("planned_models").experts_on_all_tokens(experts, x, chosen, shares)
    torch.testing.assert_close(found, experts(x, chosen, shares), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    table = import_module("plan_table")
    monkeypatch.setattr("sys.argv", ["plan_table", "--only", "vgg", "--json", "--save", str(tmp_path)])
    assert table.main() == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["over_best"] >= 1 and not row["error"] and set(row["baselines_s"]) == {"DP-EV", "DP-CP", "TP"}
    assert (tmp_path / "vgg19.yaml").exists()
