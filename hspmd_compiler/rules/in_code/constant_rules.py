"""How values are made from nothing: fills in any cut, counters whole and sliced."""

from __future__ import annotations

import torch

from ...ir.annotated import AnnotatedValue
from ...ir.graph import Row
from ...layout.layout import Layout, whole
from ..rules import RuleContext, local_shape

FILLS: dict[str, object] = {
    "aten.new_ones.default": 1,
    "aten.new_zeros.default": 0,
    "aten.ones.default": 1,
    "aten.zeros.default": 0,
    "aten.ones_like.default": 1,
    "aten.zeros_like.default": 0,
    "aten.full.default": None,
    "aten.new_full.default": None,
    "aten.full_like.default": None,
    "aten.fill.Scalar": None,
    "aten.scalar_tensor.default": None,
    "aten.empty_like.default": 0,
    "aten.new_empty.default": 0,
    "aten.new_empty_strided.default": 0,
    "aten.empty.memory_format": 0,
}
FIRST_IS_VALUE = ("aten.scalar_tensor.default",)
COUNTERS = ("aten.arange.default", "aten.arange.start", "aten.arange.start_step", "aten.linspace.default")


def fill_value(row: Row) -> object:
    """The number that a fill writes everywhere."""
    if FILLS[row.op] is not None:
        return FILLS[row.op]
    return row.args[0] if row.op in FIRST_IS_VALUE else row.args[len(row.args) - 1]


def fill(ctx: RuleContext, row: Row, layout: Layout) -> AnnotatedValue:
    """A fill in any cut."""
    value = fill_value(row)
    if row.dtype is torch.bool:
        value = bool(value)
    return ctx.emit("hspmd.full", (local_shape(layout), value, row.dtype), layout, dtype=row.dtype)


def counter(ctx: RuleContext, row: Row, layout: Layout) -> AnnotatedValue:
    """A counter is computed whole, then sliced."""
    value = ctx.emit(row.op, row.args, whole(row.shape or ()), kwargs=_with_dtype(row), dtype=row.dtype)
    return ctx.convert(value, layout)


def _with_dtype(row: Row) -> dict[str, object]:
    kwargs = {
        key: value for key, value in row.kwargs.items() if key not in ("device", "pin_memory", "layout")
    }
    return kwargs | {"dtype": row.dtype}
