"""Rules of cross-entropy: over a split vocabulary, with global counts, without mixing micro-batches."""

from __future__ import annotations

from ...base.comm_plan import Combine
from ...errors import DeduceError
from ...ir.annotated import AnnotatedValue
from ...ir.graph import Row
from ...layout.layout import Axis, Factor, Layout, dim_cut, make_layout, summed_over
from ...layout.view_maps import deduplicated
from ..cuts import exact, single_factor, whole_dim
from ..rules import Result, RuleContext, held_intervals, integer, uncut
from .index_bounds import in_bounds
from .pointwise_rules import join_dims
from .reduction_rules import MEAN, SUM, reduced_layout

NLL = "aten.nll_loss_forward.default"
NLL_BACKWARD = "aten.nll_loss_backward.default"


def log_softmax(ctx: RuleContext, row: Row) -> Result:
    """Over a cut dim: maximum and sum of exponentials are reduced, the result stays cut."""
    value = ctx.settle(ctx.operand(row.args[0]))
    dim = integer(row.args[1]) % len(value.layout.dims)
    if dim_cut(value.layout.dims[dim], ranks=True) is None:
        value = whole_dim(ctx, value, dim)
        return ctx.emit(row.op, (value, dim, row.args[2]), value.layout, dtype=row.dtype)
    value = exact(ctx, value)
    if row.args[2]:
        value = ctx.emit(
            "aten._to_copy.default", (value,), value.layout, kwargs={"dtype": row.dtype}, dtype=row.dtype
        )
    stats = make_layout(value.layout.with_dim(dim, ()).dims)
    peak = ctx.all_reduce(ctx.emit("hspmd.row_max", (value, dim), stats), Combine.MAX)
    total = ctx.all_reduce(ctx.emit("hspmd.exp_sum", (value, peak, dim), stats), Combine.SUM)
    return ctx.emit("hspmd.log_softmax_finish", (value, peak, total), value.layout)


def _target(ctx: RuleContext, argument: object, logits: AnnotatedValue) -> AnnotatedValue:
    """The target, cut over the batch as the logits are."""
    target = ctx.settle(ctx.operand(argument))
    rows = make_layout(logits.layout.dims[:-1])
    return ctx.convert(target, uncut(rows, ranks=True) if rows.cut(ranks=True) is None else rows)


def _check_weight(row: Row, weight: object) -> None:
    if weight is not None:
        raise DeduceError(
            "cross-entropy with class weights is not split",
            at=row.where,
            rule="the split loss counts targets; class weights would weight the count too",
            fix="drop weight=, or multiply the loss per sample by the weight of its target",
        )


def _class_factor(ctx: RuleContext, value: AnnotatedValue) -> tuple[AnnotatedValue, Factor | None]:
    """The log-probabilities with a single class factor, and this factor where it is cut."""
    dim = len(value.layout.dims) - 1
    if dim_cut(value.layout.dims[dim], ranks=True) is None:
        return value, None
    value, factor = single_factor(ctx, value, dim)
    return value, factor if factor.axis is not None else None


def nll_loss(ctx: RuleContext, row: Row) -> Result:
    """The target is picked where its class lives; a mean divides by the count of the whole batch."""
    _check_weight(row, row.args[2])
    reduction, ignore = integer(row.args[3]), integer(row.args[4])
    logp = exact(ctx, ctx.settle(ctx.operand(row.args[0])))
    logp, factor = _class_factor(ctx, logp)
    target = _target(ctx, row.args[1], logp)
    checked = in_bounds(ctx, row, row.args[1], target, logp.layout.shape[-1], ignore)
    if reduction not in (MEAN, SUM):
        return _unreduced(ctx, row, logp, checked)
    count = _count(ctx, _counted(ctx, row.args[1], target), ignore, logp)
    intervals = held_intervals(factor, logp.layout.shape[-1])
    partial = reduced_layout(logp.layout, range(len(logp.layout.dims)), keep=False)
    picked = ctx.emit("hspmd.nll_pick", (logp, checked, intervals, ignore), partial, dtype=logp.dtype)
    if Axis.TENSOR in partial.partial:
        picked = ctx.convert(picked, make_layout((), partial.partial - {Axis.TENSOR}))
    if reduction == SUM:
        return picked, count
    return ctx.emit("aten.div.Tensor", (picked, count), picked.layout), count


def _unreduced(
    ctx: RuleContext, row: Row, logp: AnnotatedValue, target: AnnotatedValue
) -> tuple[AnnotatedValue, ...]:
    """A loss per sample; its count is zero, as in PyTorch."""
    logp = whole_dim(ctx, logp, len(logp.layout.dims) - 1)
    layout = make_layout(logp.layout.dims[:-1])
    total = make_layout((), summed_over(layout.factors()))
    return ctx.emit_many(row.op, (logp, target, *row.args[2:]), (layout, total))


def _counted(ctx: RuleContext, argument: object, target: AnnotatedValue) -> AnnotatedValue:
    """The target as it is counted: as it came, without a gather, where samples are shared by ranks."""
    cut = target.layout.cut(ranks=True)
    if not target.pure:
        return target
    if cut is not None and cut[1].axis is not Axis.SEQUENCE:
        return exact(ctx, ctx.settle(ctx.operand(argument)))
    return ctx.convert(target, uncut(target.layout, ranks=True))


def _count(ctx: RuleContext, target: AnnotatedValue, ignore: int, logp: AnnotatedValue) -> AnnotatedValue:
    """Valid targets of the whole global batch."""
    args = (target, ignore, logp.dtype)
    layout = make_layout((), summed_over(target.layout.factors()))
    count = ctx.emit("hspmd.valid_count", args, layout, dtype=logp.dtype)
    return ctx.settle(count)


def nll_backward(ctx: RuleContext, row: Row) -> Result:
    """Minus the gradient over the count at each valid target, where its class lives."""
    _check_weight(row, row.args[3])
    reduction, ignore = integer(row.args[4]), integer(row.args[5])
    logp = exact(ctx, ctx.settle(ctx.operand(row.args[1])))
    logp, factor = _class_factor(ctx, logp)
    target = _target(ctx, row.args[2], logp)
    grad = ctx.settle(ctx.operand(row.args[0]))
    if reduction not in (MEAN, SUM):
        logp = whole_dim(ctx, logp, len(logp.layout.dims) - 1)
        grad = ctx.convert(grad, make_layout(logp.layout.dims[:-1]))
        args = (grad, logp, target, None, reduction, ignore, ctx.operand(row.args[6]))
        return ctx.emit(row.op, args, logp.layout)
    count = ctx.settle(ctx.operand(row.args[6])) if reduction == MEAN else None
    intervals = held_intervals(factor, logp.layout.shape[-1])
    return ctx.emit("hspmd.nll_backward", (grad, target, logp, intervals, ignore, count), logp.layout)


def log_softmax_backward(ctx: RuleContext, row: Row) -> Result:
    """Over a cut dim the sum of the gradient's row is needed; for cross-entropy it is known."""
    grad, out = (ctx.settle(ctx.operand(argument)) for argument in row.args[:2])
    dim = integer(row.args[2]) % len(out.layout.dims)
    shape = row.shape or ()
    dims = join_dims([grad.layout, out.layout], shape)
    layout = make_layout(dims)
    if dim_cut(layout.dims[dim], ranks=True) is not None:
        layout = deduplicated(layout)  # the sum over the dim counts each element once
    grad, out = (ctx.convert(value, layout) for value in (grad, out))
    if dim_cut(layout.dims[dim], ranks=True) is None:
        grad, out = (whole_dim(ctx, value, dim) for value in (grad, out))
        return ctx.emit(row.op, (grad, out, dim, *row.args[3:]), out.layout, dtype=row.dtype)
    total = _row_sum(ctx, row, grad, layout, dim)
    return ctx.emit("hspmd.log_softmax_backward", (grad, out, total), layout)


def _row_sum(ctx: RuleContext, row: Row, grad: AnnotatedValue, layout: Layout, dim: int) -> AnnotatedValue:
    """The sum over the classes of each row of the gradient, whole on every rank."""
    stats = make_layout(layout.with_dim(dim, ()).dims)
    if ctx.producer_op(row.args[0]) == NLL_BACKWARD and len(layout.dims) == 2:
        loss = ctx.row_of(row.args[0])
        reduction, ignore = integer(loss.args[4]), integer(loss.args[5])
        if reduction in (MEAN, SUM):
            target = ctx.convert(ctx.settle(ctx.operand(loss.args[2])), make_layout(stats.dims[:-1]))
            scale = ctx.settle(ctx.operand(loss.args[0]))
            count = ctx.settle(ctx.operand(loss.args[6])) if reduction == MEAN else None
            return ctx.emit("hspmd.nll_rowsum", (scale, target, ignore, count), stats, dtype=grad.dtype)
    total = ctx.emit("aten.sum.dim_IntList", (grad, (dim,), True), stats)
    return ctx.all_reduce(total, Combine.SUM)
