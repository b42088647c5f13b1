"""Operators that a model library brings, lowered to ours, so that a program runs without the library."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..program.kernels.grouped_product import grouped_mm, grouped_mm_backward
from .graph import LogicalGraph

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
def _grouped_mm(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    return grouped_mm(rows, weights, ends)


@_grouped_mm.register_fake
def _(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty((rows.shape[0], weights.shape[2]))


@torch.library.custom_op("hspmd::grouped_mm_backward", mutates_args=())
def _grouped_mm_backward(rows: Tensor, weights: Tensor, ends: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return grouped_mm_backward(rows, weights, ends, grad)


@_grouped_mm_backward.register_fake
def _(rows: Tensor, weights: Tensor, ends: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return rows.new_empty(rows.shape), weights.new_empty(weights.shape)
