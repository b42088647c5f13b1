"""A stage of more devices than the model has heads, which overrides keep whole: its ranks share samples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hspmd_compiler as hspmd
from hspmd_compiler.errors import StrategyError

HEADS, WIDTH, TOKENS = 2, 4, 3


class Attention(nn.Module):
    """Two heads, and a linear layer that has none."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        parts = self.inner(x).view(x.shape[0], TOKENS, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        return functional.mse_loss(self.out(mixed.transpose(1, 2).reshape(x.shape)), y)


def compiled(whole: str) -> hspmd.CompiledProgram:
    example = {"x": torch.randn(2, TOKENS, WIDTH), "y": torch.randn(2, TOKENS, WIDTH)}
    strategy = {
        "pipelines": [{"stages": [{"devices": [0, 1, 2], "layers": 1}], "micro_batches": [4, 1]}],
        "overrides": [{"match": whole, "duplicate": True}],
        "layouts": [{"at": "x", "to": "S0(3,0,1)"}],
    }
    return hspmd.compile(Attention(), example, strategy=strategy)


def test_heads_that_are_kept_whole_limit_no_stage() -> None:
    compiled("**").verify(values=True)


def test_heads_that_are_split_do() -> None:
    with pytest.raises(StrategyError, match="one value breaks a rule"):
        compiled("out.bias")
