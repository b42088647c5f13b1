"""Models that call `torch.utils.checkpoint` themselves: the graph computes everything once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.trace.tracer import trace

from .equal_to_eager import Case

WIDTH = 6
UNEQUAL = Strategy((P((S((0, 1), (0, 1), (2, 1)), S((2,), (1, 2))), (2, 1)), P((S((3,), (0, 2)),), (2,))))


class Stored(nn.Module):
    """Two layers with dropout; reentrant: which of torch's two checkpoints is around each, None for none."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, WIDTH))
            for _ in range(2)
        )
        self.reentrant = reentrant

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)
        return functional.mse_loss(x, y)


def batch() -> dict[str, Tensor]:
    drawn = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0))
    return {"x": drawn[0], "y": drawn[1]}


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_graph_is_that_of_the_model_without_them(reentrant: bool) -> None:
    with_them, without = (trace(Stored(kind), batch(), batch=5) for kind in (reentrant, None))
    assert [row.op for row in with_them.rows] == [row.op for row in without.rows]


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_dropped_is_dropped_once(reentrant: bool) -> None:
    Case.of(lambda: Stored(reentrant), batch()).check(UNEQUAL)


def test_torch_has_its_checkpoints_back() -> None:
    trace(Stored(False), batch(), batch=5)
    seen: list[int] = []
    x = torch.ones(2, requires_grad=True)

    def twice(value: Tensor) -> Tensor:
        seen.append(1)
        return value.sin()

    checkpoint(twice, x, use_reentrant=True).sum().backward()
    assert len(seen) == 2
