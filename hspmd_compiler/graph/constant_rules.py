"""Rules of operators that make values from nothing: fills take any cut, counters are sliced."""

from __future__ import annotations

import torch

from ..annotations.layout import Layout, whole
from .annotated import AnnotatedValue
from .ir import Row
from .rules import Result, RuleContext, local_shape, pull_for, rule_for

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


def fill_value(row: Row) -> object:
    """The number that a fill writes everywhere."""
    if FILLS[row.op] is not None:
        return FILLS[row.op]
    return row.args[0] if row.op in FIRST_IS_VALUE else row.args[len(row.args) - 1]


def _fill(ctx: RuleContext, row: Row, layout: Layout) -> AnnotatedValue:
    value = fill_value(row)
    if row.dtype is torch.bool:
        value = bool(value)
    return ctx.emit("hspmd.full", (local_shape(layout), value, row.dtype), layout, dtype=row.dtype)


@rule_for(*FILLS)
def fill(ctx: RuleContext, row: Row) -> Result:
    """A fill is whole unless a cut is asked for."""
    return _fill(ctx, row, whole(row.shape or ()))


@pull_for(*FILLS)
def pull_fill(ctx: RuleContext, row: Row, layout: Layout) -> AnnotatedValue | None:
    return _fill(ctx, row, layout)


@rule_for("aten.arange.default", "aten.arange.start", "aten.arange.start_step", "aten.linspace.default")
def counter(ctx: RuleContext, row: Row) -> Result:
    """A counter is computed whole, then sliced."""
    return ctx.emit(row.op, row.args, whole(row.shape or ()), kwargs=_with_dtype(row), dtype=row.dtype)


def _with_dtype(row: Row) -> dict[str, object]:
    kwargs = {
        key: value for key, value in row.kwargs.items() if key not in ("device", "pin_memory", "layout")
    }
    return kwargs | {"dtype": row.dtype}
