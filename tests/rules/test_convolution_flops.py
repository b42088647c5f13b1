"""Floating-point operations of convolutions, by their letters: each result meets a window, not the image."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.compiler import trace_graph
from hspmd_compiler.passes.deduction.placement import GraphFacts


class Two(nn.Module):
    """The second one's image has a gradient, so that its backward is two products."""

    def __init__(self, **more: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 8, 3, bias=False, **more)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)).sum()


@pytest.mark.parametrize("more", [{}, {"stride": 3}, {"groups": 2}, {"padding": 1}])
def test_backward_is_twice_the_forward(more: dict[str, int]) -> None:
    graph = trace_graph(Two(**more), {"x": torch.zeros(1, 3, 12, 12)}, 2).graph
    facts = GraphFacts.of(graph)
    made, back = (
        [row for row in graph.rows if row.op == f"aten.{name}.default"]
        for name in ("convolution", "convolution_backward")
    )
    second = made[1]
    assert second.shape is not None
    windows = 2 * second.shape[0] * second.shape[1] * second.shape[2] * second.shape[3]
    assert facts.calls.of(second).flops() == windows * 3 * 3 * 4 // more.get("groups", 1)
    assert facts.calls.of(back[0]).flops() == 2 * facts.calls.of(second).flops()
