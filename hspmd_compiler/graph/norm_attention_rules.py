"""Rules of fused operators that split only as a pattern: layer norm and attention."""

from __future__ import annotations

from ..annotations.layout import Dim, Factor, Layout, make_layout, sum_axis
from .annotated import AnnotatedValue
from .cuts import dense, exact, whole_dim
from .ir import Row, refs_of
from .pointwise_rules import join_dims, operand_layout, operands, settled_but_batch
from .rules import Result, RuleContext, items

FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"
FLASH_BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
HEAD_DIMS = 2


def _whole_tail(ctx: RuleContext, value: AnnotatedValue, count: int) -> AnnotatedValue:
    rank = len(value.layout.dims)
    for dim in range(rank - count, rank):
        value = whole_dim(ctx, value, dim)
    return value


def _whole_parameter(ctx: RuleContext, argument: object) -> AnnotatedValue | None:
    value = ctx.optional(argument)
    return None if value is None else _whole_tail(ctx, ctx.settle(value), len(value.layout.dims))


def _stats(layout: Layout, count: int) -> Layout:
    kept = len(layout.dims) - count
    return make_layout((*layout.dims[:kept], *((),) * count))


def _dense(ctx: RuleContext, value: AnnotatedValue, layout: Layout) -> AnnotatedValue:
    """The value in a layout, and in memory without gaps: kernels ignore the strides of statistics."""
    converted = ctx.convert(value, layout)
    if converted is value:
        return value
    return dense(ctx, converted)


def layer_norm_backward(ctx: RuleContext, row: Row) -> Result:
    """Gradients of scale and shift are pending sums over every axis that cuts the tokens."""
    count = len(items(row.args[2]))
    values = settled_but_batch(ctx, row, operands(ctx, row))
    grad, value, mean, spread = (values[ref.id] for ref in refs_of((*row.args[:2], *row.args[3:5])))
    pending = grad.layout.partial
    grad, value = (_whole_tail(ctx, item, count) for item in (grad, value))
    shape = value.layout.shape
    dims = join_dims([grad.layout, value.layout], shape)
    grad = exact(ctx, ctx.convert(grad, make_layout(dims, pending)))
    value = exact(ctx, ctx.convert(value, make_layout(dims)))
    layout = value.layout
    stats = [_dense(ctx, item, _stats(layout, count)) for item in (mean, spread)]
    scale, shift = (_whole_parameter(ctx, argument) for argument in row.args[5:7])
    partial = frozenset(sum_axis(factor.axis) for factor in layout.factors() if factor.axis is not None)
    parameter = make_layout(tuple((Factor(size),) for size in shape[len(shape) - count :]), partial | pending)
    args = (grad, value, row.args[2], *stats, scale, shift, row.args[7])
    return ctx.emit_many(row.op, args, (grad.layout, parameter, parameter))


def attention(ctx: RuleContext, row: Row) -> Result:
    """Batch and heads are parallel; tokens and head dim are whole; the mask follows."""
    query, key, value = (_whole_tail(ctx, ctx.settle(ctx.operand(a)), HEAD_DIMS) for a in row.args[:3])
    dims = _head_dims([query, key, value])
    query, key, value = (_to_heads(ctx, item, dims) for item in (query, key, value))
    mask = _mask(ctx, row, dims)
    dropout, causal = _argument(row, 3, 0.0), _argument(row, 4, False)
    args = (query, key, value, mask, dropout, causal, row.kwargs.get("scale"))
    out = query.layout
    return ctx.emit_many("hspmd.attention", args, (out, make_layout(out.dims[:3])))


def _argument(row: Row, position: int, default: object) -> object:
    return row.args[position] if len(row.args) > position else default


def _head_dims(values: list[AnnotatedValue]) -> tuple[Dim, ...]:
    """Batch and head dims in which query, key and value meet."""
    layouts = [make_layout(value.layout.dims[:HEAD_DIMS]) for value in values]
    return join_dims(layouts, [layouts[0].shape[0], layouts[0].shape[1]])


def _to_heads(ctx: RuleContext, value: AnnotatedValue, dims: tuple[Dim, ...]) -> AnnotatedValue:
    return ctx.convert(value, make_layout((*dims, *value.layout.dims[HEAD_DIMS:])))


def _mask(ctx: RuleContext, row: Row, dims: tuple[Dim, ...]) -> AnnotatedValue | None:
    mask = ctx.optional(row.kwargs.get("attn_mask"))
    if mask is None:
        return None
    mask = _whole_tail(ctx, ctx.settle(mask), HEAD_DIMS)
    shape = [make_layout(dims).shape[0], make_layout(dims).shape[1], *mask.layout.shape[-HEAD_DIMS:]]
    full = (*dims, *mask.layout.dims[-HEAD_DIMS:])
    return ctx.convert(mask, operand_layout(mask, full, shape))


def attention_backward(ctx: RuleContext, row: Row) -> Result:
    """Heads from the saved output; everything else follows."""
    grad, query, key, value, out, stats = (ctx.settle(ctx.operand(argument)) for argument in row.args[:6])
    out = exact(ctx, _whole_tail(ctx, out, HEAD_DIMS))
    dims = out.layout.dims[:HEAD_DIMS]
    grad, query, key, value = (
        _to_heads(ctx, _whole_tail(ctx, item, HEAD_DIMS), dims) for item in (grad, query, key, value)
    )
    stats = ctx.convert(stats, make_layout(out.layout.dims[:3]))
    mask = _mask(ctx, row, dims)
    args = (grad, query, key, value, out, stats, mask, row.args[6], row.args[7], row.kwargs.get("scale"))
    return ctx.emit_many("hspmd.attention_backward", args, (query.layout, key.layout, value.layout))
