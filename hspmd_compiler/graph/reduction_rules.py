"""Rules of reductions over dims: cut dims become pending sums; counts stay global."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..annotations.layout import Dim, Factor, Layout, dim_size, make_layout, sum_axis
from .annotated import AnnotatedValue
from .cuts import exact, schema_argument, whole_dim
from .ir import Row
from .pointwise_rules import join_dims, operand_layout
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


def _counted_once(ctx: RuleContext, row: Row, value: AnnotatedValue) -> AnnotatedValue:
    if row.dtype is not None and not value.dtype.is_floating_point:
        value = ctx.settle(value)
    reduced, _ = _axes(row, len(value.layout.dims))
    cut = value.layout.cut(ranks=True)
    return exact(ctx, value) if cut is not None and cut[0] in reduced else value


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
