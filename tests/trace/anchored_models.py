"""Small models of many kinds, unmodified, whose calls get anchors."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..training.equal_to_eager import Case

SAMPLES, TOKENS, WIDTH, HEADS, INNER = 8, 3, 12, 4, 16


class Mlp(nn.Module):
    """Four linear layers with ReLU between them."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (12, 16, 12, 16, 8)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return functional.mse_loss(self.layers[-1](x), y)


class Encoder(nn.Module):
    """Two of PyTorch's encoder layers, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return functional.mse_loss(self.head(x), y)


class Convolutional(nn.Module):
    """Convolutions with pools between them, then a classifier with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.ReLU(),
        )
        self.classifier = nn.Sequential(nn.Linear(8 * 4, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = torch.flatten(self.features(x), 1)
        return functional.cross_entropy(self.classifier(x), y)


class Varied(nn.Module):
    """Views, in-place calls, a module that is called twice, calls of the model itself, an own leaf module."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.x = nn.Linear(8, 8), nn.Linear(8, 8)
        self.relu = nn.ReLU(inplace=True)
        self.scaled = Scaled()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.relu(self.up(x))
        x = self.up(self.scaled(x)).transpose(0, 1).transpose(0, 1)
        x = self.attention(x, x, x)[0] + self.x(x)
        mask = torch.ones(3, 3).tril()
        x += 1
        return functional.mse_loss((mask @ x)[..., :4], y)


class Scaled(nn.Module):
    """A module of the user's without others in it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale * 2


def numbers(*shape: int) -> Tensor:
    return torch.randn(SAMPLES, *shape, generator=torch.Generator().manual_seed(1))


BATCHES = {
    Mlp: {"x": numbers(12), "y": numbers(8)},
    Encoder: {"x": numbers(TOKENS, WIDTH), "y": numbers(TOKENS, 5)},
    Varied: {"x": numbers(3, 8), "y": numbers(3, 4)},
    Convolutional: {"x": numbers(3, 4, 4), "y": torch.arange(SAMPLES) % 4},
}


@cache
def traced(kind: type[nn.Module]) -> Case:
    """With all anchors."""
    return Case.of(kind, BATCHES[kind], anchors=("*",))
