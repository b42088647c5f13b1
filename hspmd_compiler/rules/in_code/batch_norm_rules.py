"""Rules of batch norm: statistics are those of the whole batch, summed over all pipelines mid-way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ...ir.annotated import AnnotatedValue
from ...ir.graph import Row
from ...layout.layout import Factor, Layout, make_layout
from ..cuts import exact
from ..rules import Result, RuleContext, items
from .pointwise_rules import join_dims
from .reduction_rules import per_channel

if TYPE_CHECKING:
    import torch

TRAINING = "aten._native_batch_norm_legit_functional.default"
WITHOUT_BUFFERS = "aten._native_batch_norm_legit.no_stats"
EVALUATION = "aten._native_batch_norm_legit_no_training.default"
BACKWARD = "aten.native_batch_norm_backward.default"


@dataclass(frozen=True, slots=True)
class Statistics:
    """Per channel, of the whole batch. squares: sum of squared differences from the mean."""

    mean: AnnotatedValue
    squares: AnnotatedValue
    count: int

    def variance(self, ctx: RuleContext, fewer: int = 0) -> AnnotatedValue:
        """Squares over the count; fewer: 1 for the estimate that running statistics keep."""
        args = (self.squares, max(self.count - fewer, 1))
        return ctx.emit("aten.div.Scalar", args, self.squares.layout, dtype=self.squares.dtype)


def batch_norm(ctx: RuleContext, row: Row) -> Result:
    """With the batch's own statistics; running ones are moved towards them."""
    running, momentum, epsilon = row.args[3:5], row.args[6], row.args[7]
    if not row.args[5]:
        return _with_running(ctx, row, running, epsilon)
    value, found = _measured(ctx, row)
    spread = _spread(ctx, found.variance(ctx), epsilon)
    moved = (found.mean, found.variance(ctx, fewer=1))
    kept = [_moving(ctx, old, new, momentum) for old, new in zip(running, moved, strict=True)]
    return _normalised(ctx, row, value, found.mean, spread), found.mean, spread, *kept


def batch_norm_without_buffers(ctx: RuleContext, row: Row) -> Result:
    """With the batch's own statistics, which are not kept."""
    value, found = _measured(ctx, row)
    spread = _spread(ctx, found.variance(ctx), row.args[5])
    return _normalised(ctx, row, value, found.mean, spread), found.mean, spread


def batch_norm_in_evaluation(ctx: RuleContext, row: Row) -> Result:
    """With running statistics: pointwise."""
    return _with_running(ctx, row, row.args[3:5], row.args[6])


def _with_running(ctx: RuleContext, row: Row, running: Sequence[object], epsilon: object) -> Result:
    value = ctx.settle(ctx.operand(row.args[0]))
    mean, variance = (ctx.settle(ctx.operand(argument)) for argument in running)
    out = _normalised(ctx, row, value, mean, _spread(ctx, variance, epsilon))
    empty = ctx.emit("hspmd.full", ((0,), 0.0, mean.dtype), make_layout(((Factor(0),),)), dtype=mean.dtype)
    return out, empty, empty, *((mean, variance) if len(row.outs or ()) > 3 else ())


def _measured(ctx: RuleContext, row: Row) -> tuple[AnnotatedValue, Statistics]:
    """The input, each element at one holder, and its statistics over the whole batch."""
    value = ctx.settle(ctx.operand(row.args[0]))
    cut = value.layout.cut(ranks=True)
    value = exact(ctx, value) if cut is not None and cut[0] != 1 else value
    layout, count = per_channel(value.layout), _count(value.layout)
    dtype = _dtype(row, 1)
    total = ctx.over_batch(ctx.emit("hspmd.channel_sum", (value, dtype), layout, dtype=dtype))
    mean = ctx.emit("aten.div.Scalar", (total, count), total.layout, dtype=dtype)
    local = ctx.convert(mean, _channels(value.layout))
    squares = ctx.over_batch(ctx.emit("hspmd.channel_squares", (value, local), layout, dtype=dtype))
    return value, Statistics(mean, squares, count)


def _dtype(row: Row, index: int) -> torch.dtype:
    return next(meta[1] for meta in (row.outs or ())[index:] if meta is not None)


def _count(layout: Layout) -> int:
    """Elements of a channel."""
    return prod(size for dim, size in enumerate(layout.shape) if dim != 1)


def _channels(layout: Layout) -> Layout:
    """How values per channel lie beside a value."""
    return make_layout((layout.dims[1],))


def _spread(ctx: RuleContext, variance: AnnotatedValue, epsilon: object) -> AnnotatedValue:
    safe = ctx.emit("aten.add.Scalar", (variance, epsilon), variance.layout, dtype=variance.dtype)
    return ctx.emit("aten.rsqrt.default", (safe,), safe.layout, dtype=safe.dtype)


def _moving(ctx: RuleContext, old: object, new: AnnotatedValue, momentum: object) -> AnnotatedValue:
    kept = ctx.convert(ctx.settle(ctx.operand(old)), new.layout)
    return ctx.emit("hspmd.channel_moving_average", (kept, new, momentum), new.layout, dtype=kept.dtype)


def _normalised(
    ctx: RuleContext, row: Row, value: AnnotatedValue, mean: AnnotatedValue, spread: AnnotatedValue
) -> AnnotatedValue:
    channels = _channels(value.layout)
    affine = [_beside(ctx, argument, channels) for argument in row.args[1:3]]
    args = (value, ctx.convert(mean, channels), ctx.convert(spread, channels), *affine)
    return ctx.emit("hspmd.channel_normalise", args, value.layout, dtype=value.dtype)


def _beside(ctx: RuleContext, argument: object, channels: Layout) -> AnnotatedValue | None:
    value = ctx.optional(argument)
    return None if value is None else ctx.convert(ctx.settle(value), channels)


def batch_norm_backward(ctx: RuleContext, row: Row) -> Result:
    """Two sums per channel: pending for scale and shift, and over the whole batch for the input."""
    training, epsilon, wanted = bool(row.args[7]), row.args[8], items(row.args[9])
    grad, value = (ctx.settle(ctx.operand(argument)) for argument in row.args[:2])
    layout = make_layout(join_dims([grad.layout, value.layout], value.layout.shape))
    grad, value = (exact(ctx, ctx.convert(item, layout)) for item in (grad, value))
    layout = value.layout
    channels = _channels(layout)
    mean, spread = _saved(ctx, row, training, epsilon, channels)
    each = per_channel(layout)
    pair = make_layout(((Factor(2),), *each.dims), each.partial)
    sums = ctx.emit("hspmd.channel_gradient_sums", (grad, value, mean, spread), pair, dtype=mean.dtype)
    shift, scale = (
        ctx.emit("aten.select.int", (sums, 0, index), each, dtype=mean.dtype) for index in range(2)
    )
    if not wanted[0]:
        return scale, scale, shift  # no row picks what nobody wants
    whole = (
        ctx.convert(ctx.over_batch(sums), make_layout(((Factor(2),), *channels.dims))) if training else None
    )
    args = (grad, value, mean, spread, _beside(ctx, row.args[2], channels), whole, _count(layout))
    return ctx.emit("hspmd.channel_input_gradient", args, layout, dtype=value.dtype), scale, shift


def _saved(
    ctx: RuleContext, row: Row, training: bool, epsilon: object, channels: Layout
) -> tuple[AnnotatedValue, AnnotatedValue]:
    """Mean and inverse deviation that the forward used."""
    if training:
        mean, spread = (ctx.settle(ctx.operand(argument)) for argument in row.args[5:7])
    else:
        mean, variance = (ctx.settle(ctx.operand(argument)) for argument in row.args[3:5])
        spread = _spread(ctx, variance, epsilon)
    return ctx.convert(mean, channels), ctx.convert(spread, channels)
