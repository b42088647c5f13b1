"""Bags of embeddings as lookups, where all bags are as long: torch flattens them, and so the samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from math import prod

import torch
from torch import Tensor

from ...ir.graph import Ref, Row

aten = torch.ops.aten
BAG = "aten._embedding_bag.default"
BACKWARD = "aten._embedding_bag_backward.default"
WEIGHTS_BACKWARD = "aten._embedding_bag_per_sample_weights_backward.default"
OFFSETS = {BAG: 2, BACKWARD: 2, WEIGHTS_BACKWARD: 3}
"""Where the starts of the bags stand among the arguments, behind the indices."""
OPTIONS = {BAG: (3, 5, 7), BACKWARD: (7, 9), WEIGHTS_BACKWARD: ()}
"""Where flags stand that are off in a plain bag: counts over the batch, sparse gradients, last offsets."""
COUNTERS = ("aten.arange.default", "aten.arange.start", "aten.arange.start_step")


class Mode(IntEnum):
    """How PyTorch numbers what becomes of the rows of a bag."""

    SUM = 0
    MEAN = 1
    MAX = 2


def is_regular_bag(row: Row, rows: Sequence[Row]) -> bool:
    """Whether a row is a bag, or its gradient, whose bags are the rows of a matrix of indices."""
    if row.op not in OFFSETS or any(row.args[place] for place in OPTIONS[row.op] if place < len(row.args)):
        return False
    indices, offsets = row.args[OFFSETS[row.op] - 1], row.args[OFFSETS[row.op]]
    if not isinstance(indices, Ref) or not isinstance(offsets, Ref):
        return False
    count, bags = prod(rows[indices.id].shape or ()), prod(rows[offsets.id].shape or ())
    return (
        bags > 0 and count > 0 and count % bags == 0 and _steps(rows[offsets.id]) == (0, count, count // bags)
    )


def _steps(row: Row) -> tuple[object, ...] | None:
    """Start, end and step of a row that counts."""
    if row.op not in COUNTERS:
        return None
    args = row.args if len(row.args) > 1 else (0, *row.args)
    return (*args, 1)[:3]


def bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = Mode.SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The bags, and for the largest of each column which row it is of; nothing reads the other results."""
    places = indices.reshape(offsets.shape[0], -1)
    rows, counts = aten.embedding.default(weight, places), places != padding_idx
    if mode == Mode.MAX:
        rows = torch.where(counts.unsqueeze(-1), rows, float("-inf"))
        largest, at = rows.max(1)
        largest = torch.where(counts.any(1, keepdim=True), largest, 0)
        return largest, indices, offsets, places.gather(1, at)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape(*places.shape, 1)
    total = torch.where(counts.unsqueeze(-1), rows, 0).sum(1)
    if mode == Mode.MEAN:
        total = total / _lengths(counts)
    return total, indices, offsets, offsets


def _lengths(counts: Tensor) -> Tensor:
    return counts.sum(1, keepdim=True).clamp(min=1)


def bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """The gradient of the table: that of a lookup of each row of each bag."""
    places = indices.reshape(offsets.shape[0], -1)
    counts, spread = places != padding_idx, grad.unsqueeze(1)
    if mode == Mode.MEAN:
        spread = spread / _lengths(counts).unsqueeze(-1)
    if mode == Mode.MAX:
        hit = (places.unsqueeze(-1) == maximum_indices.unsqueeze(1)) & counts.unsqueeze(-1)
        spread = torch.where(hit & (hit.cumsum(1) == 1), spread, 0)
    elif per_sample_weights is not None:
        spread = spread * per_sample_weights.reshape(*places.shape, 1)
    spread = spread.expand(*places.shape, grad.shape[-1])
    return aten.embedding_dense_backward.default(spread, places, num_weights, padding_idx, False)  # type: ignore[no-any-return]


def bag_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    """The gradient of the weights of each row of each bag."""
    places = indices.reshape(offsets.shape[0], -1)
    along = (grad.unsqueeze(1) * aten.embedding.default(weight, places)).sum(-1)
    return torch.where(places != padding_idx, along, 0).reshape(-1)


BAGS: Mapping[torch._ops.OpOverload, Callable[..., object]] = {
    aten._embedding_bag.default: bag,
    aten._embedding_bag_backward.default: bag_backward,
    aten._embedding_bag_per_sample_weights_backward.default: bag_weights_backward,
}
