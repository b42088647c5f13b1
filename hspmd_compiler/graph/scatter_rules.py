"""Rules of operators that pick or place elements along one dim, which is whole."""

from __future__ import annotations

from ..annotations.layout import Dim, Factor, make_layout
from .annotated import AnnotatedValue
from .cuts import dim_argument, whole_dim
from .index_bounds import in_bounds
from .ir import Ref, Row
from .pointwise_rules import is_batch_sum, join_dims, jointly_linear, settled_over_ranks
from .rules import Result, RuleContext

SCATTERS = (
    "aten.scatter.src",
    "aten.scatter.value",
    "aten.scatter_add.default",
    "aten.scatter_reduce.two",
)
LINEAR = ("aten.scatter.src", "aten.scatter_add.default")


def gather(ctx: RuleContext, row: Row) -> Result:
    """The result is cut like the index; the table meets it in its other dims."""
    table, index = ctx.operand(row.args[0]), ctx.settle(ctx.operand(row.args[2]))
    linear = is_batch_sum(table) and index.layout.cut(ranks=False) is None
    table = settled_over_ranks(ctx, table) if linear else ctx.settle(table)
    dim = dim_argument(row, 1, len(table.layout.dims))
    table = whole_dim(ctx, table, dim)
    for place in _unlike(table, index, dim):
        table, index = whole_dim(ctx, table, place), whole_dim(ctx, index, place)
        table = _first_of(ctx, table, place, index.layout.shape[place])
    beside = make_layout(_with(table.layout.dims, dim, ()))
    dims = join_dims([beside, index.layout], index.layout.shape)
    index = in_bounds(ctx, row, row.args[2], ctx.convert(index, make_layout(dims)), table.layout.shape[dim])
    partial = table.layout.partial
    table = ctx.convert(table, make_layout(_with(dims, dim, table.layout.dims[dim]), partial))
    return ctx.emit(row.op, (table, dim, index), make_layout(dims, partial))


def _unlike(value: AnnotatedValue, index: AnnotatedValue, dim: int) -> list[int]:
    """Dims but `dim` in which the index is shorter: only the first elements count there."""
    pairs = zip(value.layout.shape, index.layout.shape, strict=True)
    return [place for place, (own, other) in enumerate(pairs) if place != dim and own != other]


def _first_of(ctx: RuleContext, value: AnnotatedValue, dim: int, size: int) -> AnnotatedValue:
    layout = make_layout(_with(value.layout.dims, dim, (Factor(size),)), value.layout.partial)
    return ctx.emit("aten.slice.Tensor", (value, dim, 0, size), layout, dtype=value.dtype)


def scatter(ctx: RuleContext, row: Row) -> Result:
    """Index, source and result are whole along the dim and meet in the others."""
    index = ctx.settle(ctx.operand(row.args[2]))
    target, source = _placed(ctx, row, index)
    dim = dim_argument(row, 1, len(target.layout.dims))
    values = [target, index] if source is None else [target, index, source]
    places = {dim}.union(*(_unlike(value, index, dim) for value in values))
    for place in sorted(places):
        values = [whole_dim(ctx, value, place) for value in values]
    beside = [make_layout(_without(value.layout.dims, places)) for value in values]
    dims = join_dims(beside, beside[0].shape)
    target, index, *rest = (
        ctx.convert(value, make_layout(_only(value.layout.dims, dims, places), value.layout.partial))
        for value in values
    )
    index = in_bounds(ctx, row, row.args[2], index, target.layout.shape[dim])
    given = rest[0] if rest else row.args[3]
    return ctx.emit(row.op, (target, dim, index, given, *row.args[4:]), target.layout, kwargs=row.kwargs)


def _placed(
    ctx: RuleContext, row: Row, index: AnnotatedValue
) -> tuple[AnnotatedValue, AnnotatedValue | None]:
    """Target and source; linear in both together, but for what picks the largest and the like."""
    target = ctx.operand(row.args[0])
    if not isinstance(row.args[3], Ref):
        return ctx.settle(target), None
    source = ctx.operand(row.args[3])
    if row.op in LINEAR and index.layout.cut(ranks=False) is None:
        target, source = jointly_linear(ctx, row, (target, source))
        return target, source
    return ctx.settle(target), ctx.settle(source)


def _without(dims: tuple[Dim, ...], places: set[int]) -> tuple[Dim, ...]:
    return tuple(() if place in places else dim for place, dim in enumerate(dims))


def _only(own: tuple[Dim, ...], met: tuple[Dim, ...], places: set[int]) -> tuple[Dim, ...]:
    """`met`, with the value's own dims at `places`."""
    return tuple(own[place] if place in places else dim for place, dim in enumerate(met))


def _with(dims: tuple[Dim, ...], dim: int, new: Dim) -> tuple[Dim, ...]:
    return tuple(new if place == dim else own for place, own in enumerate(dims))


def select_scatter(ctx: RuleContext, row: Row) -> Result:
    """One index of a whole dim replaced; the other dims meet."""
    value, source = jointly_linear(ctx, row, [ctx.operand(argument) for argument in row.args[:2]])
    dim = dim_argument(row, 2, len(value.layout.dims))
    value = whole_dim(ctx, value, dim)
    own = value.layout.dims
    dims = join_dims([make_layout((*own[:dim], *own[dim + 1 :])), source.layout], source.layout.shape)
    source = ctx.convert(source, make_layout(dims, source.layout.partial))
    value = ctx.convert(value, make_layout((*dims[:dim], own[dim], *dims[dim:]), value.layout.partial))
    return ctx.emit(row.op, (value, source, dim, row.args[3]), value.layout)


def slice_scatter(ctx: RuleContext, row: Row) -> Result:
    """A stretch of a whole dim replaced; the other dims meet."""
    value, source = jointly_linear(ctx, row, [ctx.operand(argument) for argument in row.args[:2]])
    dim = dim_argument(row, 2, len(value.layout.dims))
    value, source = whole_dim(ctx, value, dim), whole_dim(ctx, source, dim)
    beside = [make_layout(_with(item.layout.dims, dim, ())) for item in (value, source)]
    dims = join_dims(beside, beside[0].shape)
    value, source = (
        ctx.convert(item, make_layout(_with(dims, dim, item.layout.dims[dim]), item.layout.partial))
        for item in (value, source)
    )
    return ctx.emit(row.op, (value, source, dim, *row.args[3:]), value.layout, kwargs=row.kwargs)
