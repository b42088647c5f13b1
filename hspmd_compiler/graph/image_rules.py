"""Rules of operators on images: samples and channels are parallel, space is whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..annotations.layout import Factor, Layout, make_layout
from .annotated import AnnotatedValue
from .cuts import whole_dim
from .ir import Row
from .lookup_rules import index_, index_within
from .pointwise_rules import join_dims
from .rules import Result, RuleContext, items, local_shape, rule_for


@dataclass(frozen=True, slots=True)
class Pooling:
    """A pooling over `space` dims. picks: it takes an element of each window, else it is linear."""

    space: int
    picks: bool


POOLINGS = {
    "max_pool2d_with_indices": Pooling(2, picks=True),
    "max_pool3d_with_indices": Pooling(3, picks=True),
    "adaptive_max_pool2d": Pooling(2, picks=True),
    "adaptive_max_pool3d": Pooling(3, picks=True),
    "avg_pool2d": Pooling(2, picks=False),
    "avg_pool3d": Pooling(3, picks=False),
    "_adaptive_avg_pool2d": Pooling(2, picks=False),
    "_adaptive_avg_pool3d": Pooling(3, picks=False),
}


def _whole_space(ctx: RuleContext, value: AnnotatedValue, space: int) -> AnnotatedValue:
    rank = len(value.layout.dims)
    for dim in range(rank - space, rank):
        value = whole_dim(ctx, value, dim)
    return value


def _with_space(layout: Layout, shape: Sequence[int], space: int) -> Layout:
    kept = layout.dims[: len(shape) - space]
    return layout.with_dims((*kept, *((Factor(size),) for size in shape[len(shape) - space :])))


def _own(op: str) -> str:
    """The kernel that also takes empty pieces."""
    return op.replace("aten.", "hspmd.").removesuffix(".default")


def pool(ctx: RuleContext, row: Row) -> Result:
    """Windows are whole; an average is linear."""
    kind = POOLINGS[row.op.split(".")[1]]
    value = ctx.operand(row.args[0])
    value = _whole_space(ctx, ctx.settle(value) if kind.picks else value, kind.space)
    if row.outs is None:
        layout = _with_space(value.layout, row.shape or (), kind.space)
        return ctx.emit(_own(row.op), (value, local_shape(layout), *row.args[1:]), layout)
    shape = next(meta[0] for meta in row.outs if meta is not None)
    layout = _with_space(value.layout, shape, kind.space)
    args = (value, local_shape(layout), *row.args[1:])
    return ctx.emit_many(_own(row.op), args, [layout for _ in row.outs])


@rule_for(*(f"aten.{name}_backward.default" for name in POOLINGS))
def pool_backward(ctx: RuleContext, row: Row) -> Result:
    """Linear in the gradient; of the input an average asks for the shape alone."""
    kind = POOLINGS[row.op.split(".")[1].removesuffix("_backward")]
    grad = _whole_space(ctx, ctx.operand(row.args[0]), kind.space)
    if not kind.picks:
        layout = _with_space(grad.layout, row.shape or (), kind.space)
        return ctx.emit(_own(row.op), (grad, local_shape(layout), *row.args[2:]), layout)
    others = (ctx.operand(row.args[1]), ctx.operand(row.args[-1]))
    values = [_whole_space(ctx, ctx.settle(value), kind.space) for value in (grad, *others)]
    grad, value, picked = _meet_outside(ctx, values, kind.space)
    args = (grad, local_shape(value.layout), value, *row.args[2:-1], picked)
    return ctx.emit(_own(row.op), args, value.layout)


def _meet_outside(ctx: RuleContext, values: list[AnnotatedValue], space: int) -> list[AnnotatedValue]:
    """Values that have all dims but space in common, in one cut of these."""
    outside = [make_layout(value.layout.dims[:-space]) for value in values]
    dims = join_dims(outside, outside[0].shape)
    return [ctx.convert(v, make_layout((*dims, *v.layout.dims[-space:]))) for v in values]


@rule_for("aten._unsafe_index.Tensor")
def resample(ctx: RuleContext, row: Row) -> Result:
    """Elements picked by an index that is known to be inside: how nearest neighbours are upsampled."""
    indices = list(items(row.args[1]))
    if indices[0] is not None:
        return index_(ctx, row)
    return index_within(ctx, row, ctx.settle(ctx.operand(row.args[0])), indices)
