"""What a training leaves to compare, however it ran."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

EARLY = 5
"""The step after which parameters must be equal; later ones carry rounding that training has amplified."""


@dataclass(frozen=True, slots=True)
class Trained:
    """Loss of every step, gradients of the first, parameters after step EARLY and after the last."""

    losses: list[float]
    gradients: dict[str, Tensor]
    early_parameters: dict[str, Tensor]
    parameters: dict[str, Tensor]
