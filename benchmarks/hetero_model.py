"""The model and the batches of `hetero_speedup.py`: a small encoder whose steps are mostly computing."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, LENGTH, CLASSES = 128, 4, 3, 128, 64
SAMPLES = 80
"""Of a step: by speeds 4 : 4 : 1 : 1 they come out whole, and computing is nearly all."""
STEPS = 1024


class Encoder(nn.Module):
    """PyTorch's own layers, and a class for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(x.mean(1)), y)


def build() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    return Encoder(), {"x": torch.zeros(2, LENGTH, WIDTH), "y": torch.zeros(2, dtype=torch.int64)}


def batch(samples: int) -> dict[str, Tensor]:
    """The same in every step."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, LENGTH, WIDTH, generator=generator)
    return {"x": x, "y": torch.randint(0, CLASSES, (samples,), generator=generator)}


def batches(batch_size: int) -> Iterator[dict[str, Tensor]]:
    """As `hspmd run --data` takes them."""
    return iter([batch(batch_size)] * STEPS)
