"""Local rows of operators that pick or place elements along one dim, which is whole."""

from __future__ import annotations

from ...ir.annotated import AnnotatedValue
from ...ir.graph import Row
from ...layout.layout import Factor, Layout, make_layout
from ..call_rule import CallRule
from ..cuts import dim_argument
from ..rules import Result, RuleContext
from .index_bounds import in_bounds

SCATTERS = (
    "aten.scatter.src",
    "aten.scatter.value",
    "aten.scatter_add.default",
    "aten.scatter_reduce.two",
)
LINEAR = ("aten.scatter.src", "aten.scatter_add.default")


def gather(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """The result is cut like the index; of a longer table only the first elements count."""
    table, index = values
    dim = dim_argument(row, 1, len(table.layout.dims))
    for place, (own, size) in enumerate(zip(table.layout.shape, index.layout.shape, strict=True)):
        if place != dim and own != size:
            table = _first_of(ctx, table, place, size)
    index = in_bounds(ctx, row, row.args[2], index, table.layout.shape[dim])
    return ctx.emit(row.op, (table, dim, index), results[0])


def _first_of(ctx: RuleContext, value: AnnotatedValue, dim: int, size: int) -> AnnotatedValue:
    dims = (*value.layout.dims[:dim], (Factor(size),), *value.layout.dims[dim + 1 :])
    layout = make_layout(dims, value.layout.partial)
    return ctx.emit("aten.slice.Tensor", (value, dim, 0, size), layout, dtype=value.dtype)


def scatter(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """Target, index and, if it is no number, source."""
    target, index, *rest = values
    dim = dim_argument(row, 1, len(target.layout.dims))
    index = in_bounds(ctx, row, row.args[2], index, target.layout.shape[dim])
    given = rest[0] if rest else row.args[3]
    return ctx.emit(row.op, (target, dim, index, given, *row.args[4:]), results[0], kwargs=row.kwargs)
