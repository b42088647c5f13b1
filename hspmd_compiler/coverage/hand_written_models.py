"""Models written with plain torch."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from .model import SAMPLES, Batch, CoveredModel

FEATURES, WIDTH, CLASSES = 7, 10, 5


class Classifier(nn.Module):
    """Linear layers with ReLU, and the cross-entropy of `y`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(FEATURES, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, CLASSES),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.net(x), y)


def labelled_rows(generator: Generator) -> Batch:
    """Random rows, each with its class."""
    x = torch.randn(SAMPLES, FEATURES, generator=generator)
    return {"x": x, "y": torch.randint(CLASSES, (SAMPLES,), generator=generator)}


HAND_WRITTEN_MODELS: tuple[CoveredModel, ...] = (CoveredModel("MLP", Classifier, labelled_rows),)
