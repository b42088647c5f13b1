"""Local rows of group norm: samples and groups are parallel, space and the channels of a group are whole."""

from __future__ import annotations

from ...ir.annotated import AnnotatedValue
from ...ir.graph import Row
from ...layout.layout import Layout
from ..call_rule import CallRule
from ..rules import Result, RuleContext, items, local_sizes
from .reduction_rules import reduced_layout

GROUP_NORM = "aten.native_group_norm.default"
GROUP_NORM_BACKWARD = "aten.native_group_norm_backward.default"


def group_norm(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """Statistics are per sample and group."""
    value, *affine = values
    rest = iter(affine)
    scale, shift = (None if argument is None else next(rest) for argument in row.args[1:3])
    args = (value, scale, shift, *_sizes(value, results[1], row.args[5]), row.args[7])
    return ctx.emit_many("hspmd.group_norm", args, results)


def _sizes(value: AnnotatedValue, statistics: Layout, space: object) -> tuple[object, ...]:
    """Local samples, channels, elements of the space and groups."""
    layout = value.layout
    return local_sizes(layout, 0), local_sizes(layout, 1), space, local_sizes(statistics, 1)


def group_norm_backward(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """Gradients of scale and shift are sums over the samples."""
    grad, value, mean, spread, *scale = values
    sizes = _sizes(value, mean.layout, row.args[7])
    args = (grad, value, mean, spread, scale[0] if scale else None, *sizes, items(row.args[9]))
    each = reduced_layout(
        value.layout, [dim for dim in range(len(value.layout.dims)) if dim != 1], keep=False
    )
    return ctx.emit_many(
        "hspmd.group_norm_backward", args, (value.layout, each, each)
    )  # those nobody wants too
