"""Batch norm in parts: sums per channel of the local samples, and what is done with the global ones.

Channels are dim 1. mean and spread (the inverse deviation) are those of the whole batch, cut to the
local channels; sums over no samples are zero.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _outside(value: Tensor) -> list[int]:
    return [dim for dim in range(value.dim()) if dim != 1]


def _per_channel(item: Tensor, value: Tensor) -> Tensor:
    return item.reshape(1, -1, *(1 for _ in range(value.dim() - 2)))


def channel_sum(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of each channel, in `dtype`."""
    return value.sum(_outside(value), dtype=dtype)


def channel_squares(value: Tensor, mean: Tensor) -> Tensor:
    """The sum of squared differences from the mean of each channel."""
    return (value - _per_channel(mean, value)).square().sum(_outside(value))


def channel_normalise(
    value: Tensor, mean: Tensor, spread: Tensor, scale: Tensor | None, shift: Tensor | None
) -> Tensor:
    """Mean 0 and deviation 1, then scaled and shifted."""
    made = (value - _per_channel(mean, value)) * _per_channel(spread, value)
    made = made if scale is None else made * _per_channel(scale, value)
    made = made if shift is None else made + _per_channel(shift, value)
    return made.to(value.dtype)


def channel_moving_average(old: Tensor, new: Tensor, momentum: float) -> Tensor:
    """Statistics that are kept from step to step."""
    return (1 - momentum) * old + momentum * new.to(old.dtype)


def channel_gradient_sums(grad: Tensor, value: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    """Per channel the sum of the gradient, and of its product with the normalised value: [2, channels]."""
    centred = (value - _per_channel(mean, value)) * _per_channel(spread, value)
    outside = _outside(value)
    return torch.stack([grad.sum(outside, dtype=mean.dtype), (grad * centred).sum(outside, dtype=mean.dtype)])


def channel_input_gradient(
    grad: Tensor,
    value: Tensor,
    mean: Tensor,
    spread: Tensor,
    scale: Tensor | None,
    sums: Tensor | None,
    count: int,
) -> Tensor:
    """The gradient of the value. sums: over the whole batch of `count` elements per channel, None where
    mean and spread do not depend on the batch."""
    made = grad
    if sums is not None:
        centred = (value - _per_channel(mean, value)) * _per_channel(spread, value)
        made = grad - (_per_channel(sums[0], value) + centred * _per_channel(sums[1], value)) / count
    factor = spread if scale is None else spread * scale
    return (made * _per_channel(factor, value)).to(value.dtype)
