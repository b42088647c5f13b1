"""An artifact for rows of any length, as a user's own script loads it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.program.sized.plan_file import plan_from


class Tokens(nn.Module):
    """A block on flattened tokens, so that a view has their number."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(6, 6)])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[0](x.reshape(-1, 6)).square().mean()


def test_a_step_by_a_plan_of_ones_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tokens()
    strategy = {
        "pipelines": [{"stages": [{"devices": [0], "layers": 1}], "micro_batches": [1]}],
        "sizes": {"tokens": [1, 200]},
    }
    hspmd.compile(model, {"x": torch.randn(2, 5, 6)}, strategy=strategy).save(tmp_path / "a")
    plan = plan_from({"version": 1, "pipelines": [[{"tokens": 7}, {"tokens": 90, "first": 7}]]})
    x = torch.randn(1, 97, 6)
    wanted = float(model(x).detach())
    engine = hspmd.load(tmp_path / "a")
    assert engine.step({"x": x}, plan) == pytest.approx(wanted, rel=1e-6)
    engine.close()
