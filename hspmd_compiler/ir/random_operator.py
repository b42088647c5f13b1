"""The operators that stand for random masks and numbers in a graph: whole, and by global positions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..program.kernels.counter_numbers import whole_numbers
from ..program.kernels.counter_random import whole_mask

RANDOM_MASK = "hspmd.random_mask.default"
RANDOM_NUMBERS = "hspmd.random_numbers.default"
MASKED = "aten.native_dropout_backward.default"
"""Its first operand times a mask and a scale: what dropout does, forward and backward."""


@torch.library.custom_op("hspmd::random_mask", mutates_args=())
def _random_mask(
    key: torch.Tensor, operator: int, keep: float, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    return whole_mask(key, operator, keep, shape, dtype)


@_random_mask.register_fake
def _(
    key: torch.Tensor, operator: int, keep: float, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


@torch.library.custom_op("hspmd::random_numbers", mutates_args=())
def _random_numbers(
    key: torch.Tensor, operator: int, kind: str, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    return whole_numbers(key, operator, kind, shape, dtype)


@_random_numbers.register_fake
def _(key: torch.Tensor, operator: int, kind: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)
