"""Rules of lookups: embeddings cut along their table's rows or columns, and indexing of masks."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import DeduceError
from ...ir.annotated import AnnotatedValue
from ...ir.graph import Ref, Row
from ...layout.layout import Axis, Dim, Factor, Layout, dim_cut, make_layout, summed_over
from ..cuts import exact, single_factor, whole_dim
from ..rules import (
    Result,
    RuleContext,
    held_intervals,
    integer,
    items,
    local_shape,
    local_sizes,
    pull_for,
    uncut,
)
from .index_bounds import in_bounds
from .pointwise_rules import copies, join_dims, operand_layout, settled_over_ranks

EMBEDDING = "aten.embedding.default"
EMBEDDING_BACKWARD = "aten.embedding_dense_backward.default"
INDEXING = ("aten.index.Tensor", "aten._unsafe_index.Tensor")
"""The second one's places are known to be inside: how nearest neighbours are upsampled."""
VIEWED = ("aten.unsqueeze.default", "aten.view.default", "aten.reshape.default", "aten.alias.default")


def embedding(ctx: RuleContext, row: Row) -> Result:
    """A table cut along its rows is looked up where the row lives: a pending sum."""
    table, index = ctx.settle(ctx.operand(row.args[0])), ctx.settle(ctx.operand(row.args[1]))
    cut = table.layout.cut(ranks=True)
    if cut is None or cut[0] == 1:
        layout = make_layout((*_without_ranks(ctx, index, cut).layout.dims, table.layout.dims[1]))
        index = ctx.convert(index, make_layout(layout.dims[:-1]))
        index = in_bounds(ctx, row, row.args[1], index, table.layout.shape[0])
        return ctx.emit(row.op, (table, index, *row.args[2:]), layout)
    index = ctx.convert(index, uncut(index.layout, ranks=True))
    table, factor = single_factor(ctx, exact(ctx, table), 0)
    layout = make_layout((*index.layout.dims, table.layout.dims[1]), frozenset({Axis.TENSOR}))
    intervals = held_intervals(factor, table.layout.shape[0])
    index = in_bounds(ctx, row, row.args[1], index, table.layout.shape[0])
    return ctx.emit("hspmd.vocab_embedding", (table, index, intervals), layout)


def _without_ranks(ctx: RuleContext, index: AnnotatedValue, cut: tuple[int, Factor] | None) -> AnnotatedValue:
    """A table cut along its columns needs all indices on every rank."""
    return index if cut is None else ctx.convert(index, uncut(index.layout, ranks=True))


def embedding_backward(ctx: RuleContext, row: Row) -> Result:
    """Linear in the gradient: rows are added where the table of the forward holds them."""
    grad, index = ctx.operand(row.args[0]), ctx.settle(ctx.operand(row.args[1]))
    rows, padding = integer(row.args[2]), integer(row.args[3])
    if row.args[4]:
        raise DeduceError(
            "embedding with scale_grad_by_freq counts indices over the whole batch",
            at=row.where,
            rule="gradients must be sums over samples",
            fix="build the embedding with scale_grad_by_freq=False",
        )
    placed = ctx.choice(row) is not None
    cut = None if placed else ctx.is_lookup_of(_row_id(row.args[1]), rows)
    if cut is not None or _cut_columns(grad.layout):
        grad = ctx.convert(grad, _gathered_tokens(grad.layout))
    if grad.layout.cut(ranks=True) is None or _cut_columns(grad.layout):
        index = ctx.convert(index, uncut(index.layout, ranks=True))
    grad, index, dims = _meet_index(ctx, grad, index)
    partial = grad.layout.partial | summed_over(factor for dim in dims for factor in dim)
    table: Dim = (Factor(rows),)
    if cut is not None and Axis.TENSOR not in partial and not _cut_columns(grad.layout):
        layout = make_layout(((Factor(rows, cut.axis, cut.sets),), grad.layout.dims[-1]), partial)
        local = local_sizes(layout, 0)
        args = (grad, index, local, held_intervals(cut, rows), padding)
        return ctx.emit("hspmd.vocab_embedding_backward", args, layout)
    layout = make_layout((table, grad.layout.dims[-1]), partial)
    return ctx.emit(row.op, (grad, index, *row.args[2:]), layout)


def _row_id(argument: object) -> int:
    return argument.id if isinstance(argument, Ref) else -1


def _cut_columns(layout: Layout) -> bool:
    return dim_cut(layout.dims[-1], ranks=True) is not None


def _gathered_tokens(layout: Layout) -> Layout:
    """The gradient with its token dims whole on the ranks; a cut of its columns stays."""
    result = layout
    for dim in range(len(layout.dims) - 1):
        result = uncut(result, ranks=True, dim=dim)
    return result


def _meet_index(
    ctx: RuleContext, grad: AnnotatedValue, index: AnnotatedValue
) -> tuple[AnnotatedValue, AnnotatedValue, tuple[Dim, ...]]:
    """Token dims of gradient and index in one cut, each token at one holder."""
    grad = exact(ctx, grad)
    tokens = make_layout(grad.layout.dims[:-1])
    dims = join_dims([tokens, uncut(index.layout, ranks=True)], list(tokens.shape))
    index = ctx.convert(index, operand_layout(index, copies(dims), list(tokens.shape)))
    grad = ctx.convert(grad, make_layout((*dims, grad.layout.dims[-1]), grad.layout.partial))
    return grad, index, dims


def index(ctx: RuleContext, row: Row) -> Result:
    """Advanced indexing: indexed dims are whole, unless the index counts the dim up (then it is kept).

    Rows of a sum over the batch are sums of rows, where all samples have the same indices.
    """
    indices = list(items(row.args[1]))
    if row.op != INDEXING[0] and indices[0] is None:
        return index_within(ctx, row, ctx.settle(ctx.operand(row.args[0])), indices)
    value = settled_over_ranks(ctx, ctx.operand(row.args[0]))
    if value.layout.cut(ranks=False) is not None:
        value = ctx.settle(value)
    if value.layout.cut(ranks=False) is not None and not value.constant:
        if indices[0] is None:
            return index_within(ctx, row, value, indices)
        return _index_batch(ctx, row, value, indices)
    if _ranks_share_rows(value) and indices[0] is not None and counts_up(ctx, indices[0], _rows(value)):
        return _index_batch(ctx, row, value, indices)
    for position, index in enumerate(indices):
        if index is not None:
            value = whole_dim(ctx, value, position)
    tensors = settled_indices(ctx, indices)
    kept = [] if value.layout.cut(ranks=True) else [t for t in tensors if t is not None and _keeps(t.layout)]
    if all(tensor is None or tensor.layout.cut(ranks=False) is None for tensor in tensors) and not (
        kept and None not in tensors
    ):
        tensors = [t if t is None else ctx.convert(t, uncut(t.layout, ranks=True)) for t in tensors]
        value = ctx.convert(value, uncut(value.layout, ranks=True))
        layout = make_layout(tuple((Factor(size),) for size in row.shape or ()), value.layout.partial)
        return ctx.emit(row.op, (value, tuple(tensors)), layout)
    return _index_by_batch(ctx, row, ctx.settle(value), tensors)


def _keeps(layout: Layout) -> bool:
    """Whether ranks cut samples or the like: places of a whole value that each of them looks up alone."""
    cut = layout.cut(ranks=True)
    return cut is not None and cut[1].axis is Axis.TENSOR


def _ranks_share_rows(value: AnnotatedValue) -> bool:
    """Whether ranks cut the first dim of an activation."""
    cut = value.layout.cut(ranks=True)
    shared = cut is not None and cut[0] == 0 and cut[1].axis is Axis.TENSOR and len(value.layout.dims[0]) == 1
    return shared and not value.static


def _rows(value: AnnotatedValue) -> int:
    return value.layout.shape[0]


def settled_indices(ctx: RuleContext, indices: Sequence[object]) -> list[AnnotatedValue | None]:
    """The values of indices, None for a dim that isn't indexed."""
    return [None if index is None else ctx.settle(ctx.operand(index)) for index in indices]


def _index_by_batch(
    ctx: RuleContext, row: Row, value: AnnotatedValue, tensors: list[AnnotatedValue | None]
) -> AnnotatedValue:
    """A whole value indexed by values per sample: the result is cut like the indices."""
    present = [tensor for tensor in tensors if tensor is not None]
    if None in tensors[: len(present)]:
        raise unsupported(row)
    rank = max(len(tensor.layout.dims) for tensor in present)
    shape = list((row.shape or ())[:rank])
    whole = value.layout.cut(ranks=True) is None
    dims = join_dims(
        [t.layout if whole and _keeps(t.layout) else uncut(t.layout, ranks=True) for t in present], shape
    )
    met = [t if t is None else ctx.convert(t, operand_layout(t, dims, shape)) for t in tensors]
    layout = make_layout((*dims, *value.layout.dims[len(tensors) :]))
    return ctx.emit(row.op, (value, tuple(met)), layout)


def index_within(ctx: RuleContext, row: Row, value: AnnotatedValue, indices: list[object]) -> AnnotatedValue:
    """Samples are kept and neighbouring dims behind them indexed, alike for every sample."""
    indexed = [position for position, index in enumerate(indices) if index is not None]
    tensors = settled_indices(ctx, indices)
    present = [tensor for tensor in tensors if tensor is not None]
    if indexed != list(range(indexed[0], indexed[-1] + 1)):
        raise unsupported(row)
    if any(tensor.layout.cut(ranks=False) is not None for tensor in present):
        raise unsupported(row)
    for position in indexed:
        value = whole_dim(ctx, value, position)
    met = tuple(None if t is None else ctx.convert(t, uncut(t.layout, ranks=True)) for t in tensors)
    rank = max(len(tensor.layout.dims) for tensor in present)
    before, behind = value.layout.dims[: indexed[0]], value.layout.dims[indexed[-1] + 1 :]
    between = tuple((Factor(size),) for size in (row.shape or ())[indexed[0] : indexed[0] + rank])
    return ctx.emit(row.op, (value, met), make_layout((*before, *between, *behind)))


def _index_batch(ctx: RuleContext, row: Row, value: AnnotatedValue, indices: list[object]) -> AnnotatedValue:
    """A value per sample indexed with 0, 1, 2, ... along the sample dim: each sample keeps its own row."""
    if not counts_up(ctx, indices[0], value.layout.shape[0]) or len(value.layout.dims[0]) != 1:
        raise unsupported(row)
    local = count_samples(ctx, ctx.operand(indices[0]), value.layout.dims[0])
    rest = settled_indices(ctx, indices[1:])
    if any(tensor is None for tensor in rest):
        raise unsupported(row)
    for position in range(1, len(indices)):
        value = whole_dim(ctx, value, position)
    others = [ctx.convert(t, uncut(t.layout, ranks=True)) for t in rest if t is not None]
    tensors = [local, *others]
    full = list((row.shape or ())[: max(len(t.layout.dims) for t in tensors)])
    dims = join_dims([t.layout for t in tensors], full)
    met = tuple(ctx.convert(t, operand_layout(t, dims, full)) for t in tensors)
    return ctx.emit(row.op, (value, met), make_layout((*dims, *value.layout.dims[len(tensors) :])))


def count_samples(ctx: RuleContext, counting: AnnotatedValue, samples: Dim) -> AnnotatedValue:
    """What stands for 0, 1, 2, ... along the samples where each piece counts its own."""
    place = counted_dim(counting.layout)
    layout = make_layout(tuple(samples if i == place else () for i in range(len(counting.layout.dims))))
    local = ctx.emit(
        "aten.arange.default",
        (local_sizes(layout, place),),
        make_layout((layout.dims[place],)),
        dtype=counting.dtype,
    )
    return ctx.emit("aten.reshape.default", (local, local_shape(layout)), layout)


def counted_dim(layout: Layout) -> int:
    """The dim of a counter that counts; all others are 1 long."""
    return next((place for place, size in enumerate(layout.shape) if size != 1), len(layout.dims) - 1)


def counts_up(ctx: RuleContext, argument: object, size: int) -> bool:
    """Whether a value is arange(size), with dims of length 1 put in."""
    row = ctx.row_of(argument)
    if size not in (row.shape or ()):
        return False
    while row.op in VIEWED:
        row = ctx.row_of(row.args[0])
    return row.op == "aten.arange.default" and row.args == (size,)


def unsupported(row: Row) -> DeduceError:
    return DeduceError(
        f"{row.op} picks across the batch dim",
        at=row.where,
        rule="a value split over the batch can be indexed along other dims, or row by row",
        fix="use one pipeline with one micro-batch, or write the selection per sample",
    )


@pull_for("aten.index.Tensor")
def pull_index(ctx: RuleContext, row: Row, layout: Layout) -> AnnotatedValue | None:
    """A constant indexed by constants: the indices are computed in the cut asked for."""
    value = ctx.operand(row.args[0])
    tensors = [ctx.operand(index) for index in items(row.args[1]) if index is not None]
    rank = max(len(tensor.layout.dims) for tensor in tensors)
    if len(tensors) != len(items(row.args[1])) or any(map(value.layout.cut, (False, True))):
        return None
    if any(factor.axis is not None for dim in layout.dims[rank:] for factor in dim):
        return None
    shape = list((row.shape or ())[:rank])
    met = tuple(ctx.convert(t, operand_layout(t, layout.dims[:rank], shape)) for t in tensors)
    return ctx.emit(row.op, (value, met), layout)
