"""Tensors that a model keeps as plain attributes: constants of it, whoever makes it, as eager has them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy

WIDTH, TOKENS, SAMPLES = 8, 4, 6
STRATEGY = Strategy((P((S((0, 1), (0, 1)), S((2,), (1, 2))), (2, 1)), P((S((3,), (0, 2)),), (3,))))


class Rotating(nn.Module):
    """A complex table and a random one, made in `__init__`, and a loss kept for others to see."""

    def __init__(self, detached: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        angles = torch.outer(torch.arange(2 * TOKENS), 0.1 ** torch.linspace(0, 1, WIDTH // 2))
        self.turns = torch.polar(torch.ones_like(angles), angles)
        self.gain = torch.randn(WIDTH)
        self.same_gain = self.gain
        self.loss = torch.tensor(0.0)
        self.detached = detached

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            pairs = torch.view_as_complex(torch.tanh(layer(x)).unflatten(-1, (-1, 2)))
            x = torch.view_as_real(pairs * self.turns[:TOKENS]).flatten(2) * self.gain * self.same_gain
        loss = nn.functional.mse_loss(x, y)
        self.loss = loss.detach() if self.detached else loss
        return loss


def made(detached: bool) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(1)
    return Rotating(detached), {name: torch.randn(SAMPLES, TOKENS, WIDTH) for name in ("x", "y")}


def detached() -> tuple[nn.Module, dict[str, Tensor]]:
    return made(True)


def attached() -> tuple[nn.Module, dict[str, Tensor]]:
    return made(False)


@pytest.mark.parametrize("factory", [detached, attached])
def test_of_a_factory(factory: Callable[[], tuple[nn.Module, dict[str, Tensor]]]) -> None:
    compiled = hspmd.compile(factory, strategy=STRATEGY)
    compiled.verify(values=True)
    params = compiled.artifact.program.ranks[0].shards
    assert {shard.name: shard.persistent for shard in params if shard.is_buffer} == {
        "turns": False,
        "gain": False,
    }
