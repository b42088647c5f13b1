"""Checks of indexes before they are used, as eager PyTorch makes them inside its kernels."""

from __future__ import annotations

from ...ir.annotated import AnnotatedValue
from ...ir.graph import OriginKind, Row
from ...layout.layout import Layout
from ..call_rule import CallRule
from ..rules import Result, RuleContext, integer

_MOVES = """
    _unsafe_view.default alias.default clone.default constant_pad_nd.default detach.default expand.default
    lift_fresh_copy.default permute.default select.int slice.Tensor squeeze.dim t.default transpose.int
    unsqueeze.default view.default
"""
MOVES = frozenset(f"aten.{name}" for name in _MOVES.split())
"""Operators whose result holds values of their operand, unchanged."""
CHECKED_INDEX = "hspmd.checked_index"


def checked_index(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """The index as it lies."""
    return in_bounds(ctx, row, row.args[0], values[0], integer(row.args[1]))


def in_bounds(
    ctx: RuleContext, row: Row, argument: object, index: AnnotatedValue, size: int, ignored: int | None = None
) -> AnnotatedValue:
    """The value of `argument`, which picks one of `size` places or is `ignored`, checked when it is used."""
    if index.constant:
        return index
    args = (index, size, ignored, _input_name(ctx, argument), row.where)
    return ctx.emit(CHECKED_INDEX, args, index.layout, dtype=index.dtype)


def _input_name(ctx: RuleContext, argument: object) -> str:
    """The batch input that an index holds values of, empty where it is computed."""
    row = ctx.row_of(argument)
    while row.op in MOVES:
        row = ctx.row_of(row.args[0])
    return row.origin.name if row.origin.kind is OriginKind.INPUT else ""
