"""Rules of views, permutations and expansions: factors are read in another grouping."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.annotated import AnnotatedValue
from ...ir.graph import Row
from ...layout.layout import Dim, Factor, Layout, dim_size, home_of, make_layout, routing_of, whole
from ...layout.view_maps import ViewMap, map_view
from ..cuts import dim_argument, whole_dim
from ..rules import Result, RuleContext, chosen_layout, integer, items, local_shape, pull_for, uncut

VIEWS = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")


def view(ctx: RuleContext, row: Row) -> Result:
    """A view reads the factors in another grouping; local sizes become the literal."""
    value = ctx.operand(row.args[0])
    return emit_view(ctx, row, value, row.shape or ())


def emit_view(ctx: RuleContext, row: Row, value: AnnotatedValue, shape: Sequence[int]) -> AnnotatedValue:
    """View `value` in a global shape, padding or gathering where its cut does not allow it."""
    mapped = map_view(value.layout, shape)
    if mapped is None and routing_of(value.layout) is not None:
        value = ctx.convert(value, home_of(value.layout))
        mapped = map_view(value.layout, shape)
    if mapped is None:
        value = ctx.convert(value, uncut(value.layout, ranks=True))
        mapped = map_view(value.layout, shape)
    if mapped is None:
        value = ctx.convert(value, uncut(value.layout, ranks=False))
        mapped = ViewMap(value.layout, whole(shape))
    source = ctx.convert(value, mapped.source)
    via = source if source is value else None
    args = (source, local_shape(mapped.target))
    return ctx.emit("aten.reshape.default", args, mapped.target, via=via, dtype=source.dtype)


PERMUTED = ("aten.t.default", "aten.transpose.int", "aten.permute.default")


def permutation(row: Row, rank: int) -> list[int]:
    """The dims of the operand in the order of the result."""
    order = list(range(rank))
    if row.op == "aten.permute.default":
        return [integer(dim) % rank for dim in items(row.args[1])]
    if row.op == "aten.t.default":
        return order[::-1]
    if rank:
        first, second = (integer(dim) % rank for dim in row.args[1:3])
        order[first], order[second] = second, first
    return order


def invert(row: Row, source: Layout, target: Layout) -> Layout | None:
    """The operand's layout with which a layout operator gives `target`, if there is one."""
    if row.op in VIEWS:
        mapped = map_view(target, source.shape)
        if mapped is None or mapped.source != target:
            return None
        again = map_view(mapped.target, target.shape)
        return mapped.target if again is not None and again.target == target else None
    if row.op in PERMUTED:
        order = permutation(row, len(source.dims))
        dims: list[Dim] = [()] * len(order)
        for position, origin in enumerate(order):
            dims[origin] = target.dims[position]
        return make_layout(tuple(dims), target.partial)
    if row.op in ("aten.detach.default", "aten.alias.default", "aten.clone.default"):
        return target
    return None


def reemit(ctx: RuleContext, row: Row, source: AnnotatedValue, target: Layout) -> AnnotatedValue:
    """The layout operator once more, on a converted operand."""
    if row.op in VIEWS:
        args = (source, local_shape(target))
        return ctx.emit("aten.reshape.default", args, target, dtype=source.dtype)
    return ctx.emit(row.op, (source, *row.args[1:]), target, kwargs=row.kwargs, dtype=source.dtype)


def unsqueeze(ctx: RuleContext, row: Row) -> Result:
    """A dim of length 1 is put in."""
    value = ctx.operand(row.args[0])
    dims = list(value.layout.dims)
    dims.insert(dim_argument(row, len(dims) + 1), ())
    return ctx.emit(row.op, (value, *row.args[1:]), value.layout.with_dims(dims), kwargs=row.kwargs)


@pull_for("aten.unsqueeze.default")
def pull_unsqueeze(ctx: RuleContext, row: Row, layout: Layout) -> AnnotatedValue | None:
    dims = list(layout.dims)
    if dims.pop(dim_argument(row, len(dims))):
        return None
    source = ctx.convert(ctx.operand(row.args[0]), make_layout(tuple(dims)))
    return ctx.emit(row.op, (source, *row.args[1:]), layout)


def expand(ctx: RuleContext, row: Row) -> Result:
    """New and stretched dims are whole, unless a planner chose a cut."""
    value = _whole_stretched(ctx, ctx.operand(row.args[0]), row.shape or ())
    return _emit_expand(ctx, row, value, chosen_layout(ctx, row) or _expanded(value.layout, row.shape or ()))


def _whole_stretched(ctx: RuleContext, value: AnnotatedValue, shape: Sequence[int]) -> AnnotatedValue:
    """A dim of length 1 that is stretched is needed on every rank, also where ranks cut it."""
    missing = len(shape) - len(value.layout.dims)
    for dim, size in enumerate(value.layout.shape):
        if size == 1 and shape[missing + dim] != 1:
            value = whole_dim(ctx, value, dim)
    return value


def _expanded(layout: Layout, shape: Sequence[int]) -> Layout:
    missing = len(shape) - len(layout.dims)
    dims: list[Dim] = [(Factor(size),) for size in shape[:missing]]
    for size, dim in zip(shape[missing:], layout.dims, strict=True):
        dims.append((Factor(size),) if dim_size(dim) == 1 and size != 1 else dim)
    return layout.with_dims(dims)


def _emit_expand(ctx: RuleContext, row: Row, value: AnnotatedValue, layout: Layout) -> AnnotatedValue:
    return ctx.emit("aten.expand.default", (value, local_shape(layout)), layout)


def repeat(ctx: RuleContext, row: Row) -> Result:
    """Copies after each other: in each dim the copies are an outer factor, which is whole."""
    value = ctx.operand(row.args[0])
    counts = [integer(count) for count in items(row.args[1])]
    dims: list[Dim] = [()] * (len(counts) - len(value.layout.dims)) + list(value.layout.dims)
    layout = value.layout.with_dims((Factor(n), *dim) for n, dim in zip(counts, dims, strict=True))
    return ctx.emit(row.op, (value, tuple(counts)), layout)


@pull_for("aten.expand.default")
def pull_expand(ctx: RuleContext, row: Row, layout: Layout) -> AnnotatedValue | None:
    """Stretched dims take any cut; the others are asked of the operand."""
    value = ctx.operand(row.args[0])
    missing = len(layout.dims) - len(value.layout.dims)
    dims = [
        own if dim_size(own) == 1 else dim
        for own, dim in zip(value.layout.dims, layout.dims[missing:], strict=True)
    ]
    return _emit_expand(ctx, row, ctx.convert(value, make_layout(tuple(dims))), layout)
