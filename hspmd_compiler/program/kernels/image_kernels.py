"""Poolings and group norm of the local samples and channels, also where there are none.

PyTorch's kernels refuse images without channels; these give the empty answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Sizes = Sequence[int]
Triple = tuple[Tensor, Tensor, Tensor]


def averaging(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`op(value, *literals)` as `kernel(value, shape, *literals)`; shape: the local one of the result."""

    def kernel(value: Tensor, shape: Sizes, *literals: Any) -> Tensor:
        return op(value, *literals) if value.numel() else value.new_zeros(tuple(shape))

    return kernel


def averaging_gradient(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`op(grad, input, *literals)` as `kernel(grad, shape, *literals)`; shape: the local one of the input."""

    def kernel(grad: Tensor, shape: Sizes, *literals: Any) -> Tensor:
        if not grad.numel():
            return grad.new_zeros(tuple(shape))
        return op(grad, grad.new_empty(1).expand(tuple(shape)), *literals)

    return kernel


def picking(op: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """`op(value, *literals)` as `kernel(value, shape, *literals)`: elements and where they were."""

    def kernel(value: Tensor, shape: Sizes, *literals: Any) -> tuple[Tensor, Tensor]:
        if value.numel():
            return op(value, *literals)
        empty = value.new_zeros(tuple(shape))
        return empty, torch.zeros_like(empty, dtype=torch.int64)

    return kernel


def picking_gradient(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`op(grad, input, *literals, picked)` as `kernel(grad, shape, input, *literals, picked)`."""

    def kernel(grad: Tensor, shape: Sizes, value: Tensor, *rest: Any) -> Tensor:
        *literals, picked = rest
        dense = picked.contiguous()  # one of PyTorch's kernels ignores its strides
        return op(grad, value, *literals, dense) if grad.numel() else grad.new_zeros(tuple(shape))

    return kernel


def _dense(item: Tensor | None) -> Tensor | None:
    """In memory without gaps: PyTorch's kernels ignore strides of parameters and statistics."""
    return None if item is None else item.contiguous()


def group_norm(
    value: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    samples: int,
    channels: int,
    space: int,
    groups: int,
    epsilon: float,
) -> Triple:
    """(result, mean and inverse deviation per sample and group) of the local groups."""
    if not value.numel():
        stats = value.new_zeros((samples, groups))
        return torch.zeros_like(value), stats, stats
    op = torch.ops.aten.native_group_norm.default
    tensors = (_dense(item) for item in (value, scale, shift))
    made: Triple = op(*tensors, samples, channels, space, groups, epsilon)
    return made


def group_norm_backward(
    grad: Tensor,
    value: Tensor,
    mean: Tensor,
    spread: Tensor,
    scale: Tensor | None,
    samples: int,
    channels: int,
    space: int,
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the value, and of scale and shift as sums over the local samples."""
    if not value.numel():
        empty = value.new_zeros((channels,))
        return torch.zeros_like(value), empty, empty
    op = torch.ops.aten.native_group_norm_backward.default
    tensors = (_dense(item) for item in (grad, value, mean, spread, scale))
    made: tuple[Tensor | None, Tensor | None, Tensor | None] = op(
        *tensors, samples, channels, space, groups, list(wanted)
    )
    return made


def _poolings() -> dict[str, Callable[..., Any]]:
    aten = torch.ops.aten
    kernels: dict[str, Callable[..., Any]] = {}
    for name in ("avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"):
        kernels[f"hspmd.{name}"] = averaging(getattr(aten, name).default)
        kernels[f"hspmd.{name}_backward"] = averaging_gradient(getattr(aten, f"{name}_backward").default)
    picking_names = "max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d"
    for name in picking_names.split():
        kernels[f"hspmd.{name}"] = picking(getattr(aten, name).default)
        kernels[f"hspmd.{name}_backward"] = picking_gradient(getattr(aten, f"{name}_backward").default)
    return kernels


POOLINGS = _poolings()
"""Kernels of all poolings by name."""
