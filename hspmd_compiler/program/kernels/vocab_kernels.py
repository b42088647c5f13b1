"""Local kernels over a vocabulary that is split between ranks: lookup, softmax, cross-entropy.

`intervals` are the rows of the whole vocabulary that this rank holds, in order. Class weights are
not supported: the loss counts each valid row once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .layout_kernels import Intervals


def local_index(ids: Tensor, intervals: Intervals) -> tuple[Tensor, Tensor]:
    """(position of each id among this rank's rows, whether it is there); absent ids get position 0."""
    position = torch.zeros_like(ids)
    present = torch.zeros_like(ids, dtype=torch.bool)
    start = 0
    for low, high in intervals:
        inside = (ids >= low) & (ids < high)
        position = torch.where(inside, ids - (low - start), position)
        present = present | inside
        start += high - low
    return position, present


def vocab_embedding(weight: Tensor, ids: Tensor, intervals: Intervals) -> Tensor:
    """Rows of the local table; zeros for ids of other ranks, so that the sum is the whole lookup."""
    if weight.shape[0] == 0:
        return weight.new_zeros((*ids.shape, weight.shape[1]))
    position, present = local_index(ids, intervals)
    rows: Tensor = torch.ops.aten.embedding.default(weight, position)
    return rows.masked_fill(~present.unsqueeze(-1), 0)


def vocab_embedding_backward(
    grad: Tensor, ids: Tensor, rows_local: int, intervals: Intervals, padding_idx: int = -1
) -> Tensor:
    """Gradient of the local table. padding_idx: an id of the whole table that gets no gradient."""
    width = grad.shape[-1]
    if rows_local == 0 or grad.numel() == 0:
        return grad.new_zeros((rows_local, width))
    position, present = local_index(ids, intervals)
    if padding_idx >= 0:
        present = present & (ids != padding_idx)
    kept = grad.masked_fill(~present.unsqueeze(-1), 0)
    table: Tensor = torch.ops.aten.embedding_dense_backward.default(kept, position, rows_local, -1, False)
    return table


def row_max(x: Tensor, dim: int) -> Tensor:
    """Largest entry along `dim`, which is kept; -inf where this rank holds no entry."""
    if x.shape[dim] == 0:
        shape = list(x.shape)
        shape[dim] = 1
        return x.new_full(shape, float("-inf"))
    return x.amax(dim, keepdim=True)


def exp_sum(x: Tensor, largest: Tensor, dim: int) -> Tensor:
    """This rank's part of the softmax denominator, given the largest entry of the whole row."""
    return (x - largest).exp().sum(dim, keepdim=True)


def log_softmax_finish(x: Tensor, largest: Tensor, total: Tensor) -> Tensor:
    """Log-softmax of the local entries from the statistics of the whole row."""
    return x - largest - total.log()


def log_softmax_backward(grad: Tensor, logp: Tensor, rowsum: Tensor) -> Tensor:
    """Gradient of the logits from that of the local log-probabilities and its sum over the whole row."""
    return grad - logp.exp() * rowsum


def valid_count(target: Tensor, ignore_index: int, dtype: torch.dtype) -> Tensor:
    """How many targets are not `ignore_index`."""
    return (target != ignore_index).sum().to(dtype)


def nll_pick(logp: Tensor, target: Tensor, intervals: Intervals, ignore_index: int) -> Tensor:
    """Minus the sum of the log-probabilities of the valid targets whose class this rank holds."""
    if logp.numel() == 0:
        return logp.new_zeros(())
    position, chosen = _targets_here(target, intervals, ignore_index)
    picked = logp.gather(1, position.unsqueeze(1)).squeeze(1)
    return -picked.masked_fill(~chosen, 0).sum()


def nll_backward(
    grad: Tensor,
    target: Tensor,
    logp: Tensor,
    intervals: Intervals,
    ignore_index: int,
    count: Tensor | None,
) -> Tensor:
    """Gradient of the local log-probabilities: -grad/count (-grad without a count) at the targets."""
    out = torch.zeros_like(logp, memory_format=torch.contiguous_format)
    if logp.numel() == 0:
        return out
    position, chosen = _targets_here(target, intervals, ignore_index)
    values = _where_rows(chosen, _scaled(grad, count), logp.dtype)
    return out.scatter_(1, position.unsqueeze(1), values)


def nll_rowsum(grad: Tensor, target: Tensor, ignore_index: int, count: Tensor | None) -> Tensor:
    """Sum of `nll_backward` over the whole row, known without communication: [rows, 1]."""
    return _where_rows(target != ignore_index, _scaled(grad, count), grad.dtype)


def _targets_here(target: Tensor, intervals: Intervals, ignore_index: int) -> tuple[Tensor, Tensor]:
    position, present = local_index(target, intervals)
    return position, present & (target != ignore_index)


def _scaled(grad: Tensor, count: Tensor | None) -> Tensor:
    return -grad if count is None else -grad / count


def _where_rows(chosen: Tensor, value: Tensor, dtype: torch.dtype) -> Tensor:
    zero = torch.zeros((), dtype=dtype, device=chosen.device)
    return torch.where(chosen, value.to(dtype), zero).unsqueeze(1)
