"""Attention whose values are of another width than its queries is the fused one, exact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.compiler import trace_graph
from hspmd_compiler.rules.lines.attention_lines import FLASH

from .test_experts import DEEPSEEK

FORM = {
    "pipelines": [
        {"stages": [{"devices": [0, 1], "layers": 1}], "micro_batches": [1]},
        {"stages": [{"devices": [2], "layers": 1}], "micro_batches": [1]},
    ]
}


class Attends(nn.Module):
    """Two heads of these widths."""

    def __init__(self, queries: int, values: int, options: Mapping[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.options = options
        self.layers = nn.ModuleList([nn.ModuleDict({key: nn.Linear(6, 2 * queries) for key in "qk"})])
        self.layers[0]["v"] = nn.Linear(6, 2 * values)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        query, key, value = (self.layers[0][name](x).unflatten(-1, (2, -1)).transpose(1, 2) for name in "qkv")
        seen = nn.functional.scaled_dot_product_attention(query, key, value, **self.options)
        assert seen.shape[-1] == value.shape[-1]
        return nn.functional.mse_loss(seen.flatten(2).sum(-1), y)


@pytest.mark.parametrize("widths", [(5, 3), (3, 5)])
@pytest.mark.parametrize("options", [{"is_causal": True}, {"scale": 0.3}])
def test_values_of_another_width(widths: tuple[int, int], options: Mapping[str, Any]) -> None:
    inputs = {"x": torch.randn(2, 7, 6), "y": torch.randn(2, 2)}
    model = Attends(*widths, options)
    assert [row.op for row in trace_graph(model, inputs, batch=2).graph.rows].count(FLASH) == 1
    hspmd.compile(model, inputs, strategy=FORM).verify(values=True)


def packed() -> tuple[nn.Module, dict[str, Tensor]]:
    """DeepSeek's, whose queries are wider than its values, on rows of documents."""
    model = DEEPSEEK()
    ids = torch.zeros(2, 9, dtype=torch.int64)
    positions = (torch.arange(9) % 4).repeat(2, 1)
    return model, {"input_ids": ids, "labels": ids, "shift_labels": ids, "position_ids": positions}


@pytest.mark.slow
def test_deepseek_on_packed_tokens() -> None:
    form = {
        "pipelines": [{"stages": [{"devices": [0, 1], "layers": 2}], "micro_batches": [1]}],
        "sizes": {"tokens": [1, 200]},
    }
    hspmd.compile(packed, strategy=form).verify(values=True)
