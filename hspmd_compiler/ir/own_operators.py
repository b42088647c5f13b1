"""Our own operators in a graph: random masks and numbers, checks of indexes, what model libraries bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..program.kernels.counter_numbers import whole_numbers
from ..program.kernels.counter_random import whole_mask
from ..program.kernels.expert_product import expert_mm, whole_expert_grad
from ..program.kernels.grouped_product import grouped_mm, grouped_mm_backward
from ..program.kernels.packed_kernels import whole_attention, whole_attention_backward
from .graph import LogicalGraph


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


@torch.library.custom_op("hspmd::checked_index", mutates_args=())
def checked(index: torch.Tensor, size: int) -> torch.Tensor:
    """An index that must lie in 0 to size - 1, where what it is used for doesn't refuse all others itself."""
    return index.clone()


@checked.register_fake
def _(index: torch.Tensor, size: int) -> torch.Tensor:
    return torch.empty_like(index)


GROUPED = "hspmd.grouped_mm.default"
GROUPED_BACKWARD = "hspmd.grouped_mm_backward.default"
LOWERED: Mapping[str, str] = {
    "transformers.grouped_mm_fallback.default": GROUPED,
    "transformers.grouped_mm_fallback_backward.default": GROUPED_BACKWARD,
}
"""Same arguments, same results."""


def lower_library_operators(graph: LogicalGraph) -> None:
    """Rename, in place, what has a counterpart here."""
    for row in graph.rows:
        row.op = LOWERED.get(row.op, row.op)


@torch.library.custom_op("hspmd::grouped_mm", mutates_args=())
def grouped_product(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """A product for each group of rows: a model's own, where it calls PyTorch's."""
    return grouped_mm(rows, weights, ends)


@grouped_product.register_fake
def _(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty((rows.shape[0], weights.shape[2]))


@torch.library.custom_op("hspmd::grouped_mm_backward", mutates_args=())
def _grouped_mm_backward(rows: Tensor, weights: Tensor, ends: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return grouped_mm_backward(rows, weights, ends, grad)


@_grouped_mm_backward.register_fake
def _(rows: Tensor, weights: Tensor, ends: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return rows.new_empty(rows.shape), weights.new_empty(weights.shape)


def _save(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    rows, weights, ends = ctx.saved_tensors  # type: ignore[attr-defined]
    return *_grouped_mm_backward(rows, weights, ends, grad), None


grouped_product.register_autograd(_differentiate, setup_context=_save)


@torch.library.custom_op("hspmd::expert_mm", mutates_args=())
def _expert_mm(rows: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
    return expert_mm(rows, weights, experts)


@_expert_mm.register_fake
def _(rows: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
    return rows.new_empty((rows.shape[0], weights.shape[2]))


@torch.library.custom_op("hspmd::expert_grad", mutates_args=())
def _expert_grad(rows: Tensor, grad: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    return whole_expert_grad(rows, grad, experts, weights)


@_expert_grad.register_fake
def _(rows: Tensor, grad: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    return rows.new_empty(weights.shape)


@torch.library.custom_op("hspmd::packed_attention", mutates_args=())
def _packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    causal: bool,
    window: int,
    scale: float | None,
    repeat: int,
) -> tuple[Tensor, Tensor]:
    return whole_attention(q, k, v, positions, causal, window, scale, repeat)


_packed.register_fake(whole_attention)  # of shapes as of numbers


@torch.library.custom_op("hspmd::packed_attention_backward", mutates_args=())
def _packed_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    positions: Tensor,
    causal: bool,
    window: int,
    scale: float | None,
    repeat: int,
) -> tuple[Tensor, Tensor, Tensor]:
    return whole_attention_backward(grad, q, k, v, out, lse, positions, causal, window, scale, repeat)


_packed_backward.register_fake(whole_attention_backward)  # of shapes as of numbers
