"""Models that HAP has no operators for. Lines of this file stand in expected texts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Unknown(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = torch.sin(x).cumsum(1)
        return F.nll_loss(F.log_softmax(x, 1), y)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(6, 6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.nll_loss(F.log_softmax(self.both(self.both(x)), 1), y, reduction="sum")
