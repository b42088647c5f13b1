"""Rules of group norm: samples and groups are parallel, space and the channels of a group are whole."""

from __future__ import annotations

from ..annotations.layout import Axis, make_layout
from .annotated import AnnotatedValue
from .channel_groups import held_groups, in_groups, meet_in_groups, same_samples
from .cuts import whole_dim
from .ir import Row
from .rules import Result, RuleContext, integer, items, local_sizes, rule_for

GROUP_NORM = "aten.native_group_norm.default"
GROUP_NORM_BACKWARD = "aten.native_group_norm_backward.default"


def _whole_space(ctx: RuleContext, value: AnnotatedValue) -> AnnotatedValue:
    for dim in range(2, len(value.layout.dims)):
        value = whole_dim(ctx, value, dim)
    return value


def group_norm(ctx: RuleContext, row: Row) -> Result:
    """Statistics are per sample and group."""
    groups = integer(row.args[6])
    value = _whole_space(ctx, ctx.operand(row.args[0]))
    affine = [ctx.optional(argument) for argument in row.args[1:3]]
    present = [(item, 0) for item in affine if item is not None]
    (value, *met), blocks = meet_in_groups(ctx, groups, [(value, 1), *present])
    rest = iter(met)
    scale, shift = (None if item is None else next(rest) for item in affine)
    layout = value.layout
    stats = make_layout((layout.dims[0], in_groups(blocks, 1)))
    sizes = (local_sizes(layout, 0), local_sizes(layout, 1), row.args[5], held_groups(blocks))
    args = (value, scale, shift, *sizes, row.args[7])
    return ctx.emit_many("hspmd.group_norm", args, (layout, stats, stats))


@rule_for(GROUP_NORM_BACKWARD)
def group_norm_backward(ctx: RuleContext, row: Row) -> Result:
    """Gradients of scale and shift are sums over the samples."""
    groups, channels = integer(row.args[8]), integer(row.args[6])
    grad, value = (_whole_space(ctx, ctx.operand(argument)) for argument in row.args[:2])
    mean, spread = (ctx.operand(argument) for argument in row.args[2:4])
    scale = ctx.optional(row.args[4])
    operands = [(grad, 1), (value, 1), (mean, 1), (spread, 1), *([] if scale is None else [(scale, 0)])]
    met, blocks = meet_in_groups(ctx, groups, operands)
    grad, value, mean, spread = same_samples(ctx, met[:4])
    layout = value.layout
    partial = frozenset({Axis.BATCH} if layout.cut(ranks=False) is not None else ())
    parameter = make_layout((in_groups(blocks, channels // groups),), partial)
    sizes = (local_sizes(layout, 0), local_sizes(layout, 1), row.args[7], held_groups(blocks))
    args = (grad, value, mean, spread, None if scale is None else met[4], *sizes, items(row.args[9]))
    return ctx.emit_many("hspmd.group_norm_backward", args, (layout, parameter, parameter))
