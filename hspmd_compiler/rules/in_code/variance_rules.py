"""Rules of variances: over samples that the batch splits, sums of squared differences from their mean."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...ir.annotated import AnnotatedValue
from ...ir.graph import Row
from ..call_rule import argument_of, dims_along
from ..cuts import exact
from ..op_apply import by_letters
from ..rules import Result, RuleContext
from .pointwise_rules import operand_layout
from .reduction_rules import reduced_layout


def variance(ctx: RuleContext, row: Row) -> Result:
    """Along whole dims as one device does it; over samples in two sums, which loses no digits."""
    value = ctx.settle(ctx.operand(row.args[0]))
    call = ctx.call_rule(row)
    reduced = sorted({*dims_along(row, call.rule.along, len(value.layout.dims))})
    cut = value.layout.cut(ranks=False)
    if cut is None or cut[0] not in reduced:
        return by_letters(ctx, row, call)
    value = exact(ctx, value)
    keep, correction = bool(argument_of(row, "keepdim")), argument_of(row, "correction")
    shape = value.layout.shape
    mean = ctx.settle(_mean(ctx, value, reduced, keep=True))
    mean = ctx.convert(mean, operand_layout(mean, value.layout.dims, shape))
    away = ctx.emit("aten.sub.Tensor", (value, mean), value.layout, dtype=value.dtype)
    squares = ctx.emit("aten.mul.Tensor", (away, away), value.layout, dtype=value.dtype)
    fewer = correction if isinstance(correction, (int, float)) else 1
    found = _mean(ctx, squares, reduced, keep=keep, fewer=fewer)
    return found if row.outs is None else (found, _mean(ctx, value, reduced, keep=keep))


def _mean(
    ctx: RuleContext, value: AnnotatedValue, reduced: Sequence[int], *, keep: bool, fewer: float = 0
) -> AnnotatedValue:
    """A sum over the global count, still pending over what cuts the dims. fewer: taken off the count."""
    layout = reduced_layout(value.layout, reduced, keep)
    args = (value, tuple(reduced), keep)
    total = ctx.emit("aten.sum.dim_IntList", args, layout, dtype=value.dtype)
    count = max(prod(value.layout.shape[dim] for dim in reduced) - fewer, 0)
    return ctx.emit("aten.div.Scalar", (total, count), layout, dtype=value.dtype)
