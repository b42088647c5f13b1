"""Rules of windows along a dim, and of diagonals: the dims they read across are whole."""

from __future__ import annotations

from ..annotations.layout import Dim, Factor, Layout, make_layout
from .annotated import AnnotatedValue
from .cuts import argument, whole_dim
from .ir import Row
from .pointwise_rules import join_dims, jointly_linear, settled_over_ranks
from .rules import Result, RuleContext, integer, local_shape, rule_for


def _whole(ctx: RuleContext, value: AnnotatedValue, *dims: int) -> AnnotatedValue:
    value = settled_over_ranks(ctx, value)
    for dim in dims:
        value = whole_dim(ctx, value, dim)
    return value


@rule_for("aten.unfold.default")
def unfold(ctx: RuleContext, row: Row) -> Result:
    """Windows of a dim: their number is in its place, and their elements are a new last dim."""
    value, shape = ctx.operand(row.args[0]), row.shape or ()
    dim = integer(row.args[1]) % max(len(value.layout.dims), 1)
    value = _whole(ctx, value, *([dim] if value.layout.dims else []))
    dims = list(value.layout.dims)
    dims[dim : dim + 1] = [(Factor(shape[dim]),)] if dims else []
    layout = make_layout((*dims, (Factor(shape[-1]),)), value.layout.partial)
    return ctx.emit(row.op, (value, dim, *row.args[2:]), layout)


@rule_for("aten.unfold_backward.default")
def unfold_backward(ctx: RuleContext, row: Row) -> Result:
    """Windows are added where they were."""
    value, shape = ctx.operand(row.args[0]), row.shape or ()
    dim = integer(row.args[2]) % max(len(shape), 1)
    value = _whole(ctx, value, dim, len(value.layout.dims) - 1)
    dims: list[Dim] = list(value.layout.dims[:-1])
    dims[dim : dim + 1] = [(Factor(shape[dim]),)] if dims else []
    layout = make_layout(tuple(dims), value.layout.partial)
    return ctx.emit(row.op, (value, local_shape(layout), dim, *row.args[3:]), layout)


def _diagonal_dims(row: Row, first: int, rank: int) -> tuple[int, int, int]:
    """Offset, and the two dims that a diagonal runs across, counted from the front."""
    offset, one, two = (argument(row, first + i, f"dim{i}", i - 1 if i else 0) for i in range(3))
    return integer(offset), integer(one) % rank, integer(two) % rank


def _beside(layout: Layout, one: int, two: int) -> tuple[Dim, ...]:
    return tuple(dim for place, dim in enumerate(layout.dims) if place not in (one, two))


@rule_for("aten.diagonal.default")
def diagonal(ctx: RuleContext, row: Row) -> Result:
    """A diagonal across two dims is a new last dim."""
    value = ctx.operand(row.args[0])
    offset, one, two = _diagonal_dims(row, 1, len(value.layout.dims))
    value = _whole(ctx, value, one, two)
    dims = (*_beside(value.layout, one, two), (Factor((row.shape or ())[-1]),))
    return ctx.emit(row.op, (value, offset, one, two), make_layout(dims, value.layout.partial))


@rule_for("aten.diagonal_backward.default")
def diagonal_backward(ctx: RuleContext, row: Row) -> Result:
    """The gradient lies on the diagonal, zeros elsewhere."""
    value, shape = ctx.operand(row.args[0]), row.shape or ()
    offset, one, two = _diagonal_dims(row, 2, len(shape))
    value = _whole(ctx, value, len(value.layout.dims) - 1)
    others = iter(value.layout.dims[:-1])
    dims = tuple((Factor(size),) if dim in (one, two) else next(others) for dim, size in enumerate(shape))
    layout = make_layout(dims, value.layout.partial)
    return ctx.emit(row.op, (value, local_shape(layout), offset, one, two), layout)


@rule_for("aten.diagonal_scatter.default")
def diagonal_scatter(ctx: RuleContext, row: Row) -> Result:
    """A diagonal replaced; the other dims meet."""
    value, source = jointly_linear(ctx, row, [ctx.operand(item) for item in row.args[:2]])
    offset, one, two = _diagonal_dims(row, 2, len(value.layout.dims))
    for dim in (one, two):
        value = whole_dim(ctx, value, dim)
    source = whole_dim(ctx, source, len(source.layout.dims) - 1)
    beside = [make_layout(_beside(value.layout, one, two)), make_layout(source.layout.dims[:-1])]
    met = join_dims(beside, beside[0].shape)
    source = ctx.convert(source, make_layout((*met, source.layout.dims[-1]), source.layout.partial))
    others = iter(met)
    dims = tuple(own if dim in (one, two) else next(others) for dim, own in enumerate(value.layout.dims))
    value = ctx.convert(value, make_layout(dims, value.layout.partial))
    return ctx.emit(row.op, (value, source, offset, one, two), value.layout)
