"""Rules of fused operators that split only as a pattern: layer norm and attention."""

from __future__ import annotations

from ...ir.annotated import AnnotatedValue
from ...ir.graph import Row
from ...layout.layout import Layout
from ..call_rule import CallRule, argument_of
from ..rules import Result, RuleContext

FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"
FLASH_BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
SAVED = 6
"""Operands of the backward without the mask."""


def layer_norm_backward(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """Its kernel ignores the strides of statistics."""
    grad, value, *stats = values[:4]
    rest = iter(values[4:])
    affine = [None if argument is None else next(rest) for argument in row.args[5:7]]
    return ctx.emit_many(row.op, (grad, value, row.args[2], *stats, *affine, row.args[7]), results)


def attention(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """Batch and heads are parallel; tokens and head dim are whole."""
    query, key, value, *mask = values
    literals = (argument_of(row, "dropout_p"), argument_of(row, "is_causal"), row.kwargs.get("scale"))
    args = (query, key, value, mask[0] if mask else None, *literals)
    return ctx.emit_many("hspmd.attention", args, results)


def attention_backward(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """As the forward; gradients lie as query, key and value."""
    *given, mask = values if len(values) > SAVED else (*values, None)
    args = (*given, mask, row.args[SAVED], row.args[SAVED + 1], row.kwargs.get("scale"))
    return ctx.emit_many("hspmd.attention_backward", args, results)
