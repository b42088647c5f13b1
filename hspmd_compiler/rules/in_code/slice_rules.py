"""Rules of slices, splits, selections, concatenations and pads: interval sets are cut, moved and joined."""

from __future__ import annotations

from itertools import accumulate

from ...ir.annotated import AnnotatedValue, PerCoordinate
from ...ir.graph import Row
from ...layout.intervals import Intervals, within
from ...layout.layout import Axis, Coordinate, Dim, Factor, Layout, dim_cut, make_layout, routing_of
from ...layout.view_maps import at_places, flat_factor, slice_factor
from ..call_rule import argument_of
from ..cuts import dim_argument, exact, single_factor, whole_dim
from ..rules import (
    Result,
    RuleContext,
    contrib_factor,
    integer,
    is_addend,
    items,
    local_shape,
    pull_for,
    sample_factor,
    uncut,
)
from .pointwise_rules import is_batch_sum, join_dims, jointly_linear

END = 2**62


def bounds(row: Row, size: int) -> tuple[int, int, int]:
    """Start, end and step of a slice of a dim."""
    start, stop, step = (argument_of(row, name) for name in ("start", "end", "step"))
    step = integer(step)
    low, high, _ = slice(start, stop if stop is None or integer(stop) < END else None, step).indices(size)
    return low, max(low, high), step


def slice_(ctx: RuleContext, row: Row) -> Result:
    """A slice of a cut dim keeps what each coordinate holds of it."""
    value = ctx.operand(row.args[0])
    dim = dim_argument(row, len(value.layout.dims))
    low, high, step = bounds(row, value.layout.shape[dim])
    if (low, high, step) == (0, value.layout.shape[dim], 1):
        return ctx.emit("aten.alias.default", (value,), value.layout)
    if step != 1:
        value = whole_dim(ctx, value, dim)
        return ctx.emit(
            row.op, (value, *row.args[1:]), value.layout.with_dim(dim, (Factor((row.shape or ())[dim]),))
        )
    return _emit_slice(ctx, value, dim, low, high)


def _emit_slice(ctx: RuleContext, value: AnnotatedValue, dim: int, low: int, high: int) -> AnnotatedValue:
    value, factor = single_factor(ctx, value, dim)
    sliced = slice_factor(factor, low, high)
    layout = value.layout.with_dim(dim, (sliced,))
    per_sample = factor.axis is Axis.BATCH
    start = PerCoordinate(lambda at: _before(factor.held(at), low), by_position=per_sample)
    stop = PerCoordinate(lambda at: _before(factor.held(at), high), by_position=per_sample)
    return ctx.emit("aten.slice.Tensor", (value, dim, start, stop), layout)


def _before(held: Intervals, bound: int) -> int:
    """Elements of an interval set below `bound`: where a slice starts in the local tensor."""
    return sum(max(0, min(high, bound) - low) for low, high in held)


def split(ctx: RuleContext, row: Row) -> Result:
    """A split is one slice per part."""
    value = ctx.operand(row.args[0])
    if row.op == "aten.unbind.int":
        return _unbind(ctx, row, value)
    dim = dim_argument(row, len(value.layout.dims))
    parts = []
    low = 0
    for meta in row.outs or ():
        size = meta[0][dim] if meta is not None else 0
        parts.append(_emit_slice(ctx, value, dim, low, low + size))
        low += size
    return tuple(parts)


def _unbind(ctx: RuleContext, row: Row, value: AnnotatedValue) -> tuple[AnnotatedValue, ...]:
    value = whole_dim(ctx, value, dim := dim_argument(row, len(value.layout.dims)))
    layout = value.layout.with_dim(dim)
    count = value.layout.shape[dim]
    return tuple(ctx.emit("aten.select.int", (value, dim, index), layout) for index in range(count))


def select(ctx: RuleContext, row: Row) -> Result:
    """One index of a whole dim."""
    value = ctx.operand(row.args[0])
    dim = dim_argument(row, len(value.layout.dims))
    value = whole_dim(ctx, value, dim)
    layout = value.layout.with_dim(dim)
    return ctx.emit(row.op, (value, dim, row.args[2]), layout)


def select_backward(ctx: RuleContext, row: Row) -> Result:
    """The gradient of a selection is zero at the other indices."""
    value = ctx.operand(row.args[0])
    sizes = [integer(size) for size in items(row.args[1])]
    dim = dim_argument(row, len(sizes))
    dims = list(value.layout.dims)
    dims.insert(dim, (Factor(sizes[dim]),))
    layout = value.layout.with_dims(dims)
    op = row.op if routing_of(layout) is None else "hspmd.rows_select_backward"
    return ctx.emit(op, (value, local_shape(layout), dim, row.args[3]), layout)


def slice_backward(ctx: RuleContext, row: Row) -> Result:
    """On a cut dim the data stay and the sets move to their place: addends, zero elsewhere."""
    value = ctx.operand(row.args[0])
    dim = dim_argument(row, len(value.layout.dims))
    size = (row.shape or ())[dim]
    low, high, step = bounds(row, size)
    if dim_cut(value.layout.dims[dim], ranks=True) is not None and step == 1:
        value, factor = single_factor(ctx, exact(ctx, value), dim)
        if factor.sets is not None and factor.axis is not Axis.BATCH:
            return _shift_into(ctx, value, factor, dim, low, size)
    if dim_cut(value.layout.dims[dim], ranks=False) is not None and step == 1:
        padded = _among_samples(ctx, value, dim, low, size)
        if padded is not None:
            return padded
    value = whole_dim(ctx, value, dim)
    layout = value.layout.with_dim(dim, (Factor(size),))
    op = row.op if routing_of(layout) is None else "hspmd.rows_slice_backward"
    return ctx.emit(op, (value, local_shape(layout), dim, low, high, step), layout)


def _shift_into(
    ctx: RuleContext, value: AnnotatedValue, factor: Factor, dim: int, low: int, size: int
) -> AnnotatedValue:
    moved = at_places([(low, factor)], size)
    layout = value.layout.with_dim(dim, (moved,))
    return ctx.emit("aten.alias.default", (value,), layout)


def _among_samples(
    ctx: RuleContext, value: AnnotatedValue, dim: int, low: int, size: int
) -> AnnotatedValue | None:
    """A micro-batch's rows of a slice among its other rows, which are zero; None where they are others'."""
    value = ctx.convert(value, uncut(value.layout, ranks=True, dim=dim))  # others' rows are nobody's here
    value, factor = single_factor(ctx, value, dim)
    every = sample_factor(ctx, size)
    if every is None or slice_factor(every, low, low + factor.size) != factor:
        return None
    layout = value.layout.with_dim(dim, (every,))

    def places(at: Coordinate) -> Intervals:
        return within(every.held(at), tuple((a + low, b + low) for a, b in factor.held(at)))

    args = (
        value,
        local_shape(value.layout),
        dim,
        PerCoordinate(every.length),
        PerCoordinate(places, by_position=True),
        local_shape(layout),
    )
    return ctx.emit("hspmd.place", args, layout, dtype=value.dtype)


def cat(ctx: RuleContext, row: Row) -> Result:
    """Parts that are all cut alike along the joined dim join their sets; else the dim is gathered."""
    values = _parts(ctx, row)
    dim = dim_argument(row, len(row.shape or ()))
    if any(is_batch_sum(value) for value in values):
        values = jointly_linear(ctx, row, values)
    if any(is_addend(v.layout) for v in values) and not all(_contrib_at(v.layout, dim) for v in values):
        values = [ctx.settle(value) for value in values]
    if any(dim_cut(value.layout.dims[dim], ranks=False) is not None for value in values):
        parts = _parts_of_samples(ctx, values, dim)
        if parts is not None:
            return _cat_cut(ctx, row, parts, dim)
        values = [whole_dim(ctx, value, dim) for value in values]
    cuts = [dim_cut(value.layout.dims[dim], ranks=True) for value in values]
    if any(cut is not None for cut in cuts):
        if all(cut is not None for cut in cuts) and all(_one_cut(v.layout.dims[dim]) for v in values):
            return _cat_cut(ctx, row, values, dim)
        values = [whole_dim(ctx, value, dim) for value in values]
    return _cat_whole(ctx, row, values, dim)


def _parts(ctx: RuleContext, row: Row) -> list[AnnotatedValue]:
    """What is joined, without the empty vectors that torch takes beside parts of any shape."""
    values = [ctx.operand(ref) for ref in items(row.args[0])]
    dims = len(row.shape or ())
    return [value for value in values if len(value.layout.dims) == dims]


def _parts_of_samples(
    ctx: RuleContext, values: list[AnnotatedValue], dim: int
) -> list[AnnotatedValue] | None:
    """Parts along a dim of samples, each micro-batch's own; None where it isn't known which those are."""
    found = []
    size, low = sum(value.layout.shape[dim] for value in values), 0
    every = sample_factor(ctx, size)
    values = [single_factor(ctx, value, dim)[0] if _of_samples(value, dim) else value for value in values]
    shared = all(any(factor.by_rank for factor in value.layout.dims[dim]) for value in values)
    for value in values:
        high = low + value.layout.shape[dim]
        if _of_samples(value, dim):
            value = value if shared else ctx.convert(value, uncut(value.layout, ranks=True, dim=dim))
        elif every is None:
            return None
        else:
            value = whole_dim(ctx, value, dim)
            value = ctx.convert(value, value.layout.with_dim(dim, (slice_factor(every, low, high),)))
        found.append(value)
        low = high
    return found if all(_of_samples(value, dim) for value in found) else None


def _of_samples(value: AnnotatedValue, dim: int) -> bool:
    return dim_cut(value.layout.dims[dim], ranks=False) is not None


def _one_cut(dim: Dim) -> bool:
    return sum(factor.axis is not None for factor in dim) == 1


def _contrib_at(layout: Layout, dim: int) -> bool:
    cut = contrib_factor(layout)
    return cut is not None and cut[0] == dim


def _cat_cut(ctx: RuleContext, row: Row, values: list[AnnotatedValue], dim: int) -> AnnotatedValue:
    if any(contrib_factor(value.layout) is not None for value in values):
        values = [exact(ctx, value) for value in values]
    factors = [flat_factor(value.layout.dims[dim]) for value in values]
    *starts, size = accumulate((factor.size for factor in factors), initial=0)
    result = at_places(list(zip(starts, factors, strict=True)), size)
    values, dims = _meet_beside(ctx, row, values, dim)
    layout = make_layout((*dims[:dim], (result,), *dims[dim + 1 :]), values[0].layout.partial)
    return ctx.emit(row.op, (tuple(values), dim), layout)


def _cat_whole(ctx: RuleContext, row: Row, values: list[AnnotatedValue], dim: int) -> AnnotatedValue:
    values, dims = _meet_beside(ctx, row, values, dim)
    size = sum(value.layout.shape[dim] for value in values)
    layout = make_layout((*dims[:dim], (Factor(size),), *dims[dim + 1 :]), values[0].layout.partial)
    return ctx.emit(row.op, (tuple(values), dim), layout)


def _meet_beside(
    ctx: RuleContext, row: Row, values: list[AnnotatedValue], dim: int
) -> tuple[list[AnnotatedValue], tuple[Dim, ...]]:
    """Bring the parts to one cut in all dims but the joined one."""
    others = [make_layout(value.layout.with_dim(dim, ()).dims) for value in values]
    shape = [1 if index == dim else size for index, size in enumerate(row.shape or ())]
    dims = join_dims(others, shape)
    result = []
    for value in values:
        wanted = (*dims[:dim], value.layout.dims[dim], *dims[dim + 1 :])
        result.append(ctx.convert(value, make_layout(wanted, value.layout.partial)))
    return result, dims


@pull_for("aten.cat.default")
def pull_cat(ctx: RuleContext, row: Row, layout: Layout) -> AnnotatedValue | None:
    """Parts of a pure concatenation are asked for in the cut of the other dims."""
    dim = dim_argument(row, len(layout.dims))
    if any(factor.axis is not None for factor in layout.dims[dim]):
        return None
    parts = []
    for value in _parts(ctx, row):
        parts.append(ctx.convert(value, make_layout(layout.with_dim(dim, value.layout.dims[dim]).dims)))
    return ctx.emit(row.op, (tuple(parts), dim), layout)


@pull_for("aten.slice.Tensor")
def pull_slice(ctx: RuleContext, row: Row, layout: Layout) -> AnnotatedValue | None:
    """A pure slice of a whole dim asks its operand for the cut of the other dims."""
    value = ctx.operand(row.args[0])
    dim = dim_argument(row, len(layout.dims))
    if any(factor.axis is not None for factor in (*layout.dims[dim], *value.layout.dims[dim])):
        return None
    wanted = layout.with_dim(dim, value.layout.dims[dim]).dims
    low, high, step = bounds(row, value.layout.shape[dim])
    source = ctx.convert(value, make_layout(wanted))
    return ctx.emit(row.op, (source, dim, low, high, step), layout)
