"""Local kernels that cut, place and fill: what a conversion between two layouts does on one rank."""

from __future__ import annotations

import torch
from torch import Tensor

from ...base.comm_plan import Interval

Intervals = tuple[Interval, ...]


def take(x: Tensor, dim: int, intervals: Intervals) -> Tensor:
    """The slices `intervals` of `dim`, joined in order; one interval is a view."""
    if not intervals:
        return x.narrow(dim, 0, 0)
    if len(intervals) == 1:
        low, high = intervals[0]
        return x if high - low == x.shape[dim] else x.narrow(dim, low, high - low)
    return torch.cat([x.narrow(dim, low, high - low) for low, high in intervals], dim)


def factor_take(
    x: Tensor, view: tuple[int, ...], factor: int, intervals: Intervals, shape: tuple[int, ...]
) -> Tensor:
    """`take` along one factor of the factored view of `x`, given back in `shape`."""
    return take(x.reshape(view), factor, intervals).reshape(shape)


def place(
    x: Tensor,
    view: tuple[int, ...],
    factor: int,
    size: int,
    intervals: Intervals,
    shape: tuple[int, ...],
) -> Tensor:
    """Zeros with the pieces of `x` at `intervals` of the factor: the opposite of `factor_take`.

    view: factored view of `x`, whose entry `factor` is the sum of the interval lengths.
    """
    pieces = x.reshape(view)
    if intervals == ((0, size),):
        return pieces.reshape(shape)
    out = x.new_zeros((*view[:factor], size, *view[factor + 1 :]))
    start = 0
    for low, high in intervals:
        out.narrow(factor, low, high - low).copy_(pieces.narrow(factor, start, high - low))
        start += high - low
    return out.reshape(shape)


def zero_unless(x: Tensor, keep: bool) -> Tensor:
    """`x` on the one coordinate that keeps it, zeros elsewhere: turns a copy into a pending sum."""
    return x if keep else torch.zeros_like(x)


def token_positions(intervals: Intervals, dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """The numbers in the intervals: where the tokens of a piece stand in their sample."""
    runs = [torch.arange(low, high, dtype=dtype, device=device) for low, high in intervals]
    return runs[0] if len(runs) == 1 else torch.cat(runs)


def full(shape: tuple[int, ...], value: float, dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """A constant tensor."""
    return torch.full(shape, value, dtype=dtype, device=device)


def as_complex(pairs: Tensor) -> Tensor:
    """Pairs of real numbers as complex ones: a view where memory allows it, which differs between pieces."""
    *outer, last = pairs.stride()
    fits = last == 1 and not any(step % 2 for step in (*outer, pairs.storage_offset()))
    return torch.view_as_complex(pairs if fits else pairs.clone(memory_format=torch.contiguous_format))
