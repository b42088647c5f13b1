"""Kernels of ours, of which each does what `program/kernels` says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...base.comm_plan import Interval
from ...base.dtypes import ElementType
from .computed import (
    arithmetic,
    cat,
    embedding_backward,
    flash_attention,
    flash_attention_backward,
    like,
    real,
    reduced,
)
from .plain import Outline, Shape, made
from .views import reshaped, sliced

Intervals = Sequence[Interval]


def attention(query: Outline, key: Outline, value: Outline, *rest: Any) -> Any:
    """Of tensors whose rows have no gaps."""
    gapless = [_without_gaps(item) for item in (query, key, value)]
    if any(item.dim != 4 or not item.numel for item in gapless):
        return None
    return flash_attention(*gapless)


def attention_backward(grad: Outline, query: Outline, key: Outline, value: Outline, *rest: Any) -> Any:
    """Gradients of the three."""
    return flash_attention_backward(grad, query, key, value)


def _without_gaps(value: Outline) -> Outline:
    return value if value.strides and value.strides[-1] == 1 else made(value.shape, value.dtype)


def checked_index(index: Outline, *rest: Any) -> Outline:
    """By types alone itself."""
    return index


def take(value: Outline, dim: int, intervals: Intervals) -> Outline | None:
    """Slices of a dim, joined."""
    pieces = [sliced(value, dim, low, high) for low, high in intervals]
    if len(pieces) == 1:
        return pieces[0]
    known = [piece for piece in pieces if piece is not None]
    return cat(known, dim) if known and len(known) == len(pieces) else None


def factor_take(
    value: Outline, view: Shape, factor: int, intervals: Intervals, shape: Shape
) -> Outline | None:
    """The same of a view with more dims."""
    viewed = reshaped(value, view)
    taken = None if viewed is None else take(viewed, factor, intervals)
    return None if taken is None else reshaped(taken, shape)


def place(
    value: Outline, view: Shape, factor: int, size: int, intervals: Intervals, shape: Shape
) -> Outline | None:
    """Zeros with pieces of the value, or the value itself where it is all of them."""
    if tuple(intervals) != ((0, size),):
        return made(shape, value.dtype)
    viewed = reshaped(value, view)
    return None if viewed is None else reshaped(viewed, shape)


def zero_unless(value: Outline, keep: bool) -> Outline | None:
    """Itself, or zeros."""
    return value if keep else like(value)


def full(shape: Sequence[int], value: float, dtype: ElementType) -> Outline:
    """A constant."""
    return made(shape, dtype)


def vocab_embedding(weight: Outline, ids: Outline, intervals: object) -> Outline:
    """Rows of the local table."""
    return made((*ids.shape, weight.shape[1]), weight.dtype)


def vocab_embedding_backward(grad: Outline, ids: Outline, rows: int, *rest: object) -> Outline | None:
    """The local table's gradient."""
    return embedding_backward(grad, ids, rows)


def row_max(value: Outline, dim: int) -> Outline | None:
    """Along a dim that is kept."""
    return reduced(value, dim, True)


def exp_sum(value: Outline, largest: Outline, dim: int) -> Outline | None:
    """Along a dim that is kept."""
    shifted = real(value, largest)
    return None if shifted is None else reduced(shifted, dim, True)


def log_softmax_finish(value: Outline, largest: Outline, total: Outline) -> Outline | None:
    """Of the operands' type."""
    shifted, logarithm = arithmetic(value, largest), real(total)
    return None if shifted is None or logarithm is None else arithmetic(shifted, logarithm)


def log_softmax_backward(grad: Outline, logp: Outline, total: Outline) -> Outline | None:
    """Of the operands' type."""
    grown = real(logp)
    scaled = None if grown is None else arithmetic(grown, total)
    return None if scaled is None else arithmetic(grad, scaled)


def valid_count(target: Outline, ignored: int, dtype: ElementType) -> Outline:
    """A number."""
    return made((), dtype)


def nll_pick(logp: Outline, target: Outline, *rest: object) -> Outline | None:
    """A number."""
    plain = logp.dim == 2 and logp.dtype.is_floating_point and target.shape == logp.shape[:1]
    return made((), logp.dtype) if plain else None


def nll_backward(grad: Outline, target: Outline, logp: Outline, *rest: object) -> Outline | None:
    """Of the shape of the log-probabilities."""
    plain = logp.dim == 2 and logp.dtype == grad.dtype and target.shape == logp.shape[:1]
    return made(logp.shape, logp.dtype) if plain and not grad.dim else None


def nll_rowsum(grad: Outline, target: Outline, ignored: int, count: Outline | None) -> Outline | None:
    """A number for each row."""
    return made((*target.shape, 1), grad.dtype) if target.dim == 1 and not grad.dim else None
