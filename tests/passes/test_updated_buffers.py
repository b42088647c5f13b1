"""A buffer that the forward updates is refused: its new value would be lost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.errors import DeduceError


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.calls.add_(1)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.mse_loss(x, y)


def test_refused_by_name() -> None:
    strategy = {
        "version": 1,
        "pipelines": [{"stages": [{"devices": [0], "layers": 2}], "micro_batches": [2, 1]}],
    }
    inputs = {"x": torch.randn(2, 4), "y": torch.randn(2, 4)}
    with pytest.raises(DeduceError) as caught:
        hspmd.compile(Counting(), inputs, strategy=strategy)
    assert "calls" in str(caught.value)
    assert "self.calls.add_(1)" in str(caught.value)
