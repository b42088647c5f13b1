"""Rules of operators that put or add values where indices say, as the gradient of indexing does."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.annotated import AnnotatedValue
from ...ir.graph import Row
from ...layout.layout import Axis, Dim, Factor, Layout, dim_cut, make_layout, summed_over
from ..call_rule import argument_of
from ..cuts import exact, whole_dim
from ..rules import Result, RuleContext, at_first, items, uncut
from .lookup_rules import count_samples, counts_up, settled_indices, unsupported
from .pointwise_rules import copies, join_dims, operand_layout, settled_over_ranks

PUTS = ("aten.index_put.default", "aten._unsafe_index_put.default")
Indices = Sequence[AnnotatedValue | None]


def index_put(ctx: RuleContext, row: Row) -> Result:
    """Adding is linear in the values; replacing needs them settled."""
    adds = bool(argument_of(row, "accumulate"))
    base, values = ctx.settle(ctx.operand(row.args[0])), ctx.operand(row.args[2])
    values = settled_over_ranks(ctx, values) if adds else ctx.settle(values)
    given = items(row.args[1])
    indices = settled_indices(ctx, given)
    if Axis.BATCH in values.layout.partial and _cut_by_batch(base):
        values = ctx.settle(values)
    leading = [index for index in indices if index is not None]
    if len(leading) < len(indices) or not _fit(base, values, leading):
        return _beside(ctx, row, base, values, indices)
    if _cut_by_batch(values) and counts_up(ctx, given[0], base.layout.shape[0]):
        return _sample_by_sample(ctx, row, base, values, leading)
    if adds:
        return _added(ctx, row, base, values, leading)
    return _beside(ctx, row, base, values, indices)


def _cut_by_batch(value: AnnotatedValue) -> bool:
    return value.layout.cut(ranks=False) is not None


def _fit(base: AnnotatedValue, values: AnnotatedValue, indices: Sequence[AnnotatedValue]) -> bool:
    """Whether values for indices of the first dims are not broadcast."""
    rank, shape = _rank(indices), values.layout.shape
    shapes = [(1,) * (rank - len(index.layout.shape)) + index.layout.shape for index in indices]
    joint = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    return shape[:rank] == joint and shape[rank:] == base.layout.shape[len(indices) :]


def _rank(indices: Indices) -> int:
    """Dims of all indices together."""
    return max(len(index.layout.dims) for index in indices if index is not None)


def _beside(
    ctx: RuleContext, row: Row, base: AnnotatedValue, values: AnnotatedValue, indices: Indices
) -> AnnotatedValue:
    """Dims before the first index are parallel, all others whole; indices are the same for all samples."""
    kept = _kept(base, values, indices)
    for place in range(kept, len(base.layout.dims)):
        base = whole_dim(ctx, base, place)
    shared = kept if len(values.layout.dims) > _behind(base, indices, kept) else 0
    for place in range(shared, len(values.layout.dims)):
        values = whole_dim(ctx, values, place)
    beside = [make_layout(base.layout.dims[:kept]), make_layout(values.layout.dims[:shared])]
    shape = beside[0].shape
    dims = join_dims(beside if shared else beside[:1], shape)
    base = ctx.convert(base, make_layout((*dims, *base.layout.dims[kept:])))
    if shared:
        full = (*dims, *values.layout.dims[kept:])
        values = ctx.convert(values, operand_layout(values, full, (*shape, *values.layout.shape[kept:])))
    base = _once(ctx, base, values.layout.partial)
    met = tuple(None if index is None else _everywhere(ctx, index) for index in indices)
    layout = make_layout(base.layout.dims, values.layout.partial)
    return ctx.emit(row.op, (base, met, values, *row.args[3:]), layout, kwargs=row.kwargs)


def _kept(base: AnnotatedValue, values: AnnotatedValue, indices: Indices) -> int:
    """How many dims of the base stand before neighbouring indices, and so in values that have them."""
    places = [place for place, index in enumerate(indices) if index is not None]
    kept, rank = places[0], len(values.layout.dims)
    behind = _behind(base, indices, kept)
    neighbours = places == list(range(kept, places[-1] + 1))
    return kept if neighbours and (rank <= behind or rank == kept + behind) else 0


def _behind(base: AnnotatedValue, indices: Indices, kept: int) -> int:
    """Dims of values that are not broadcast, behind those that they share with the base."""
    indexed = sum(index is not None for index in indices)
    return len(base.layout.dims) - kept - indexed + _rank(indices)


def _everywhere(ctx: RuleContext, value: AnnotatedValue) -> AnnotatedValue:
    """An index whole on every rank and in every micro-batch."""
    return ctx.convert(value, uncut(uncut(value.layout, ranks=True), ranks=False))


def _once(ctx: RuleContext, base: AnnotatedValue, partial: frozenset[Axis]) -> AnnotatedValue:
    """A base to which addends are added: zero but at one place."""
    for axis in sorted(partial, key=lambda found: found.value):
        layout = make_layout(base.layout.dims, base.layout.partial | {axis})
        base = ctx.emit("hspmd.zero_unless", (base, at_first(axis)), layout, dtype=base.dtype)
    return base


def _added(
    ctx: RuleContext,
    row: Row,
    base: AnnotatedValue,
    values: AnnotatedValue,
    indices: Sequence[AnnotatedValue],
) -> AnnotatedValue:
    """Each value is added where it lives: a pending sum over every axis that cuts the indices."""
    if _cut_by_batch(base):
        raise unsupported(row)
    rank = _rank(indices)
    values = exact(ctx, values)
    shape = values.layout.shape[:rank]
    tokens = [make_layout(values.layout.dims[:rank]), *(uncut(i.layout, ranks=True) for i in indices)]
    dims = join_dims(tokens, shape)
    values = ctx.convert(values, make_layout((*dims, *values.layout.dims[rank:]), values.layout.partial))
    met = tuple(ctx.convert(index, operand_layout(index, copies(dims), shape)) for index in indices)
    partial = values.layout.partial | summed_over(factor for dim in dims for factor in dim)
    base = ctx.convert(base, _indexed(base.layout, len(indices), values.layout.dims[rank:]))
    base = _once(ctx, base, partial)
    layout = make_layout(base.layout.dims, partial)
    return ctx.emit(row.op, (base, met, values, *row.args[3:]), layout, kwargs=row.kwargs)


def _indexed(layout: Layout, count: int, rest: tuple[Dim, ...]) -> Layout:
    """The base with its first dims whole, the others as in the values."""
    return make_layout((*((Factor(size),) for size in layout.shape[:count]), *rest))


def _sample_by_sample(
    ctx: RuleContext,
    row: Row,
    base: AnnotatedValue,
    values: AnnotatedValue,
    indices: Sequence[AnnotatedValue],
) -> AnnotatedValue:
    """The first index counts samples: each sample's values go to its own row."""
    rank, first = _rank(indices), indices[0].layout.shape
    place = next(i for i in range(rank) if dim_cut(values.layout.dims[i], ranks=False) is not None)
    counted = place + len(first) - rank
    if counted < 0 or first[counted] != base.layout.shape[0] or len(values.layout.dims[place]) != 1:
        raise unsupported(row)
    for dim in range(rank):
        if dim != place:  # where ranks may share the samples
            values = ctx.convert(values, uncut(values.layout, ranks=True, dim=dim))
    samples, shape = values.layout.dims[place], values.layout.shape[:rank]
    local = count_samples(ctx, indices[0], samples)
    met = [ctx.convert(i, operand_layout(i, values.layout.dims[:rank], shape)) for i in indices[1:]]
    below = _indexed(base.layout, len(indices), values.layout.dims[rank:]).dims[1:]
    layout = make_layout((samples, *below), values.layout.partial)
    base = ctx.convert(base, make_layout(layout.dims))
    return ctx.emit(row.op, (base, (local, *met), values, *row.args[3:]), layout, kwargs=row.kwargs)
