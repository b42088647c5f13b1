"""What rules ask of an operand: a dim whole, a dim as one factor, each element at one holder."""

from __future__ import annotations

from ..ir.annotated import AnnotatedValue
from ..ir.graph import Row
from ..layout.intervals import is_exact
from ..layout.layout import Factor, dim_cut
from ..layout.view_maps import deduplicated, flat_factor
from .call_rule import argument_of
from .rules import RuleContext, consistent, integer, uncut


def dim_argument(row: Row, rank: int, name: str = "dim") -> int:
    """The dim that a literal names, counted from the front."""
    return integer(argument_of(row, name)) % max(rank, 1)


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
