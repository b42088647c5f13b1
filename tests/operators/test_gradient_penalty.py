"""Gradients inside of forward: penalties on their size, with what changes tensors in place around them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hspmd_compiler as hspmd
from hspmd_compiler.errors import TraceError

PLAN = {
    "pipelines": [
        {"stages": [{"devices": [0], "layers": 1}, {"devices": [1], "layers": 1}], "micro_batches": [2, 1]},
        {"stages": [{"devices": [2], "layers": 2}], "micro_batches": [2]},
    ]
}


class Critic(nn.Module):
    """As WGAN-GP has it. how: what the size of a gradient is; inplace: what its activations are."""

    def __init__(self, how: str, inplace: bool) -> None:
        super().__init__()
        self.how = how
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace), nn.Linear(6, 6), nn.ELU(inplace=inplace))
            for _ in range(2)
        )
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_(True)
        u = x
        for layer in self.layers:
            u = layer(u)
        u = self.head(u)[:, 0]
        (grad,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        size = grad.norm(dim=1) if self.how == "norm" else grad.square().sum(1).sqrt()
        return functional.mse_loss(u, y) + 0.1 * (size - 1).square().mean()


@pytest.mark.parametrize(("how", "inplace"), [("norm", False), ("norm", True), ("square", True)])
def test_gradient_penalties_are_exact(how: str, inplace: bool) -> None:
    inputs = {"x": torch.zeros(2, 6), "y": torch.zeros(2)}
    program = hspmd.compile(lambda: (Critic(how, inplace), inputs), strategy=PLAN)
    assert program.verify(values=True).values is not None


class Halved(Critic):
    """A part of a tensor is changed in place."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().forward(x, y)
        x = x * 2
        x[:, 0] = 0
        return loss + self.layers[0](x).mean()


def test_what_no_plain_run_traces_is_told() -> None:
    inputs = {"x": torch.zeros(2, 6), "y": torch.zeros(2)}
    with pytest.raises(TraceError, match="a gradient that the trace can't follow") as caught:
        hspmd.compile(lambda: (Halved("square", False), inputs), strategy=PLAN)
    assert "x[:, 0] = ..." in caught.value.fix
