"""Rules of reductions over dims: cut dims become pending sums; counts stay global."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from ..annotations.layout import Dim, Factor, Layout, dim_size, make_layout, sum_axis
from .annotated import AnnotatedValue
from .cuts import exact, schema_argument, whole_dim
from .empty_pieces import emit_unless_empty
from .ir import Row
from .pointwise_rules import has_fractions, join_dims, operand_layout, settled_but_batch, settled_over_ranks
from .rules import Result, RuleContext, integer, is_addend, items, rule_for

SUM = 2
MEAN = 1


def _axes(row: Row, rank: int) -> tuple[list[int], bool]:
    """Reduced dims and keepdim."""
    dims = row.args[1] if len(row.args) > 1 else row.kwargs.get("dim")
    keep = bool(row.args[2] if len(row.args) > 2 else row.kwargs.get("keepdim", False))
    if isinstance(dims, int):
        dims = (dims,)
    reduced = [integer(dim) % max(rank, 1) for dim in items(dims)] if dims else list(range(rank))
    return reduced, keep


def reduced_layout(layout: Layout, reduced: Sequence[int], keep: bool) -> Layout:
    """Cuts of reduced dims become pending sums, other dims stay."""
    partial = set(layout.partial)
    dims: list[Dim] = []
    for index, dim in enumerate(layout.dims):
        if index not in reduced:
            dims.append(dim)
            continue
        partial |= {sum_axis(factor.axis) for factor in dim if factor.axis is not None}
        if keep:
            dims.append(())
    return make_layout(tuple(dims), frozenset(partial))


@rule_for("aten.sum.dim_IntList", "aten.sum.default")
def sum_(ctx: RuleContext, row: Row) -> Result:
    """A sum is linear; each element is counted by one holder."""
    value = _counted_once(ctx, row, ctx.operand(row.args[0]))
    reduced, keep = _axes(row, len(value.layout.dims))
    layout = reduced_layout(value.layout, reduced, keep)
    args = (value, *row.args[1:])
    return ctx.emit(row.op, args, layout, kwargs=row.kwargs)


def _counted_once(ctx: RuleContext, row: Row, value: AnnotatedValue) -> AnnotatedValue:
    if row.dtype is not None and not value.dtype.is_floating_point:
        value = ctx.settle(value)
    reduced, _ = _axes(row, len(value.layout.dims))
    cut = value.layout.cut(ranks=True)
    return exact(ctx, value) if cut is not None and cut[0] in reduced else value


@rule_for("aten.mean.dim", "aten.mean.default")
def mean(ctx: RuleContext, row: Row) -> Result:
    """A mean over whole dims is local; over a cut dim it is a sum over the global count."""
    value = ctx.operand(row.args[0])
    if is_addend(value.layout):
        value = ctx.settle(value)
    value = _counted_once(ctx, row, value)
    reduced, keep = _axes(row, len(value.layout.dims))
    if all(factor.axis is None for index in reduced for factor in value.layout.dims[index]):
        layout = reduced_layout(value.layout, reduced, keep)
        return ctx.emit(row.op, (value, *row.args[1:]), layout, kwargs=row.kwargs)
    layout = reduced_layout(value.layout, reduced, keep)
    total = ctx.emit("aten.sum.dim_IntList", (value, tuple(reduced), keep), layout, kwargs=_dtype(row))
    count = prod(dim_size(value.layout.dims[index]) for index in reduced)
    return ctx.emit("aten.div.Scalar", (total, count), layout)


def _dtype(row: Row) -> dict[str, object]:
    return {"dtype": row.kwargs["dtype"]} if row.kwargs.get("dtype") is not None else {}


_ALONG = """
    linalg_vector_norm.default _softmax.default _safe_softmax.default cumsum.default cumprod.default
    logcumsumexp.default amax.default amin.default any.dim any.dims all.dim all.dims argmax.default
    argmin.default logsumexp.default flip.default roll.default
    sort.default sort.stable argsort.default argsort.stable topk.default kthvalue.default mode.default
    median.dim nanmedian.dim max.dim min.dim aminmax.default cummax.default cummin.default prod.dim_int
    count_nonzero.default count_nonzero.dim_IntList nansum.default
    _fft_r2c.default _fft_c2c.default _fft_c2r.default
"""
ALONG_DIMS = tuple(f"aten.{name}" for name in _ALONG.split())
"""Operators along the dims that an argument names; without it, along all."""
_OVER_ALL = "max.default min.default median.default nanmedian.default prod.default"
OVER_ALL = tuple(f"aten.{name}" for name in _OVER_ALL.split())
_LINEAR = (
    *("aten.cumsum.default", "aten.flip.default", "aten.roll.default"),
    *("aten._fft_r2c.default", "aten._fft_c2c.default", "aten._fft_c2r.default"),
)
_DIMS = {"aten.flip.default": "dims", "aten.roll.default": "dims"}
"""What this argument is called, if not `dim`."""


@rule_for(*ALONG_DIMS, *OVER_ALL)
def along_dims(ctx: RuleContext, row: Row) -> Result:
    """The dims it works along are whole; the others are parallel."""
    value = ctx.operand(row.args[0])
    linear = row.op in _LINEAR and row.dtype is not None and has_fractions(value.dtype)
    value = settled_over_ranks(ctx, value) if linear else ctx.settle(value)
    along = dims_along(row, len(value.layout.dims))
    for dim in sorted(along):
        value = whole_dim(ctx, value, dim)
    layouts = [
        _without(value.layout, along, meta[0] if meta else ())
        for meta in row.outs or ((row.shape or (), row.dtype),)
    ]
    return emit_unless_empty(ctx, row, (value, *row.args[1:]), layouts, (value,))


def dims_along(row: Row, rank: int) -> set[int]:
    """The dims that an operator of ALONG_DIMS or OVER_ALL works along, counted from the front."""
    argument = None if row.op in OVER_ALL else schema_argument(row, _DIMS.get(row.op, "dim"))
    given = [argument] if isinstance(argument, int) else list(items(argument) if argument else range(rank))
    return {integer(dim) % max(rank, 1) for dim in given}


def _without(layout: Layout, along: Collection[int], shape: Sequence[int]) -> Layout:
    """The layout of a result of `shape`: the dims `along` have another length, or are gone."""
    if len(shape) == len(layout.dims):
        return layout.with_dims(
            (Factor(shape[index]),) if index in along else dim for index, dim in enumerate(layout.dims)
        )
    return layout.with_dims(dim for index, dim in enumerate(layout.dims) if index not in along)


@rule_for("aten.histc.default")
def histogram(ctx: RuleContext, row: Row) -> Result:
    """Counts between given bounds add up over pieces; without bounds they are the whole value's own."""
    value = ctx.settle(ctx.operand(row.args[0]))
    if schema_argument(row, "min") == schema_argument(row, "max"):
        for dim in range(len(value.layout.dims)):
            value = whole_dim(ctx, value, dim)
    value = exact(ctx, value)
    partial = reduced_layout(value.layout, range(len(value.layout.dims)), keep=False).partial
    layout = make_layout(((Factor(integer(schema_argument(row, "bins"))),),), partial)
    return ctx.emit(row.op, (value, *row.args[1:]), layout, kwargs=row.kwargs)


@rule_for("aten._softmax_backward_data.default")
def softmax_backward(ctx: RuleContext, row: Row) -> Result:
    """The softmax dim is whole in gradient and output."""
    values = {index: ctx.operand(argument) for index, argument in enumerate(row.args[:2])}
    pair = list(settled_but_batch(ctx, row, values).values())
    dim = integer(row.args[2]) % len(pair[0].layout.dims)
    pair = [whole_dim(ctx, value, dim) for value in pair]
    dims = join_dims([value.layout for value in pair], row.shape or ())
    pair = [ctx.convert(value, operand_layout(value, dims, row.shape or ())) for value in pair]
    return ctx.emit(row.op, (*pair, *row.args[2:]), make_layout(dims, pair[0].layout.partial))


ELEMENT_LOSSES = {
    "aten.mse_loss.default": 2,
    "aten.smooth_l1_loss.default": 2,
    "aten.huber_loss.default": 2,
    "aten.binary_cross_entropy.default": 3,
    "aten.binary_cross_entropy_with_logits.default": 4,
    "aten.soft_margin_loss.default": 2,
}
"""Where the reduction stands among the arguments; a trace leaves out what has its default."""
ELEMENT_LOSS_GRADS = {
    "aten.mse_loss_backward.default": 3,
    "aten.smooth_l1_loss_backward.default": 3,
    "aten.huber_loss_backward.default": 3,
    "aten.binary_cross_entropy_backward.default": 4,
    "aten.soft_margin_loss_backward.default": 3,
}


@rule_for(*ELEMENT_LOSSES)
def element_loss(ctx: RuleContext, row: Row) -> Result:
    """Losses per element: summed locally, divided once by the global count."""
    position = ELEMENT_LOSSES[row.op]
    reduction = integer(row.args[position]) if len(row.args) > position else MEAN
    args, layout = _met(ctx, row, _padded(row, position))
    if reduction not in (MEAN, SUM):
        return ctx.emit(row.op, (*args, reduction, *row.args[position + 1 :]), layout, kwargs=row.kwargs)
    if all(factor.axis is None for factor in layout.factors()):
        return ctx.emit(
            row.op, (*args, reduction, *row.args[position + 1 :]), make_layout(()), kwargs=row.kwargs
        )
    partial = reduced_layout(layout, range(len(layout.dims)), keep=False)
    total = ctx.emit(row.op, (*args, SUM, *row.args[position + 1 :]), partial, kwargs=row.kwargs)
    if reduction == SUM:
        return total
    return ctx.emit("aten.div.Scalar", (total, prod(layout.shape)), partial)


@rule_for(*ELEMENT_LOSS_GRADS)
def element_loss_grad(ctx: RuleContext, row: Row) -> Result:
    """The gradient of a mean is the gradient of the sum over the global count."""
    position = ELEMENT_LOSS_GRADS[row.op]
    reduction = integer(row.args[position]) if len(row.args) > position else MEAN
    args, layout = _met(ctx, row, _padded(row, position))
    cut = any(factor.axis is not None for factor in layout.factors())
    local = SUM if cut and reduction == MEAN else reduction
    grad = ctx.emit(row.op, (*args, local, *row.args[position + 1 :]), layout, kwargs=row.kwargs)
    return grad if local == reduction else ctx.emit("aten.div.Scalar", (grad, prod(layout.shape)), layout)


def _padded(row: Row, count: int) -> tuple[object, ...]:
    """The first `count` arguments; those that a trace left out are None, the default of optional weights."""
    return (*row.args[:count], *(None for _ in range(count - len(row.args))))


def _met(ctx: RuleContext, row: Row, arguments: Sequence[object]) -> tuple[list[object], Layout]:
    """Settled operands in the dims in which they meet; a scalar gradient stays as it is."""
    values = [ctx.optional(argument) for argument in arguments]
    settled = [ctx.settle(value) if value is not None else None for value in values]
    present = [value for value in settled if value is not None]
    shape = max((value.layout.shape for value in present), key=len)
    present = [exact(ctx, value) if value.layout.shape == shape else value for value in present]
    dims = join_dims([value.layout for value in present], shape)
    met: list[object] = []
    for held in settled:
        met.append(None if held is None else ctx.convert(held, operand_layout(held, dims, shape)))
    return met, make_layout(dims)
