"""The models of the survey: two layers around an operator, or a loss behind two layers."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn

SAMPLES, TOKENS, WIDTH, INNER, CLASSES = 6, 4, 6, 8, 5
Apply = Callable[..., Tensor]
Make = Callable[[], Apply]


class Wrapped(nn.Module):
    """A module used by a function: `use(module, x)`."""

    def __init__(self, module: nn.Module, use: Apply) -> None:
        super().__init__()
        self.module = module
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self.module, x)


class Weighted(nn.Module):
    """A parameter used by a function: `use(x, weight)`."""

    def __init__(self, shape: tuple[int, ...], use: Apply) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(shape))
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(x, self.weight)


class Layer(nn.Module):
    """Linear, the operator, and linear back, beside the input.

    shape: of a sample for the operator; None: [TOKENS, INNER].
    """

    def __init__(self, make: Make, shape: tuple[int, ...] | None) -> None:
        super().__init__()
        self.shape = shape
        self.up = nn.Linear(WIDTH, INNER) if shape is None else nn.Linear(TOKENS * WIDTH, prod(shape))
        self.operator = make()
        with torch.no_grad():
            out = self.operator(torch.rand(2, *(shape or (TOKENS, INNER))))
        self.flat = out.dim() != 3 or shape is not None or out.shape[1] != TOKENS
        sizes = (out.numel() // 2, TOKENS * WIDTH) if self.flat else (out.shape[-1], WIDTH)
        self.down = nn.Linear(*sizes)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x) if self.shape is None else self.up(x.flatten(1)).view(len(x), *self.shape)
        out = self.operator(hidden)
        out = self.down(out.reshape(len(x), -1)).view(x.shape) if self.flat else self.down(out)
        return x + out


class Model(nn.Module):
    """Two such layers."""

    def __init__(self, make: Make, shape: tuple[int, ...] | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(make, shape) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return nn.functional.mse_loss(x, y)


class LossModel(nn.Module):
    """Two layers, and scores of CLASSES per token for a loss."""

    def __init__(self, loss: Apply) -> None:
        super().__init__()
        inner = (nn.Sequential(nn.Linear(WIDTH, INNER), nn.Tanh(), nn.Linear(INNER, WIDTH)) for _ in range(2))
        self.layers = nn.ModuleList(inner)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.loss = loss

    def forward(self, x: Tensor, **targets: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.loss(self.head(x), **targets)
