"""What rules ask of an operand: a dim whole, a dim as one factor, each element at one holder."""

from __future__ import annotations

from ..ir.annotated import AnnotatedValue
from ..ir.graph import Row
from ..layout.intervals import is_exact
from ..layout.layout import Factor, dim_cut
from ..layout.view_maps import deduplicated, flat_factor
from ..program.operator_names import known_operator
from .rules import RuleContext, consistent, integer, uncut


def dim_argument(row: Row, position: int, rank: int) -> int:
    dim = row.args[position] if len(row.args) > position else 0
    return integer(dim) % max(rank, 1)


def schema_place(op: str, name: str) -> int:
    """Where an aten operator takes an argument."""
    return next(
        place for place, found in enumerate(known_operator(op)._schema.arguments) if found.name == name
    )


def schema_argument(row: Row, name: str) -> object:
    """An argument of an aten operator by name; its default where the row leaves it out."""
    place = schema_place(row.op, name)
    if len(row.args) > place:
        return row.args[place]
    return row.kwargs.get(name, known_operator(row.op)._schema.arguments[place].default_value)


def argument(row: Row, position: int, name: str, default: object) -> object:
    if len(row.args) > position:
        return row.args[position]
    return row.kwargs.get(name, default)


def whole_dim(ctx: RuleContext, value: AnnotatedValue, dim: int) -> AnnotatedValue:
    """The value with `dim` not cut at all."""
    if dim_cut(value.layout.dims[dim], ranks=True) is not None:
        value = ctx.convert(value, uncut(consistent(value.layout), ranks=True, dim=dim))
    if dim_cut(value.layout.dims[dim], ranks=False) is not None:
        value = ctx.convert(value, uncut(value.layout, ranks=False, dim=dim))
    return value


def single_factor(ctx: RuleContext, value: AnnotatedValue, dim: int) -> tuple[AnnotatedValue, Factor]:
    """The value and its dim as one factor; a dim that ranks cut, beside samples, is gathered first."""
    if sum(factor.axis is not None for factor in value.layout.dims[dim]) > 1:
        value = ctx.convert(value, uncut(consistent(value.layout), ranks=True, dim=dim))
    return value, flat_factor(value.layout.dims[dim])


def exact(ctx: RuleContext, value: AnnotatedValue) -> AnnotatedValue:
    """Consistent copies that overlap are thinned to one holder per element."""
    cut = value.layout.cut(ranks=True)
    if cut is None or cut[1].contrib or cut[1].sets is None or is_exact(cut[1].size, cut[1].sets):
        return value
    return ctx.convert(value, deduplicated(value.layout))


def dense(ctx: RuleContext, value: AnnotatedValue) -> AnnotatedValue:
    """The value in memory without gaps, in the order of its dims."""
    return ctx.emit("aten.contiguous.default", (value,), value.layout, dtype=value.dtype)
