"""Local rows whose kernels need not know what to do with an empty piece."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..ir.annotated import AnnotatedValue
from ..ir.graph import Row
from ..layout.layout import Layout, has_empty_piece, whole
from .rules import Result, RuleContext, local_shape

UNLESS_EMPTY = "hspmd.unless_empty"


def emit_unless_empty(
    ctx: RuleContext,
    row: Row,
    args: tuple[object, ...],
    layouts: Sequence[Layout | None],
    operands: Iterable[AnnotatedValue],
    kernel: str = "",
) -> Result:
    """The row with local arguments; a rank that holds nothing of an operand has zeros as results.

    kernel: what computes a piece, if not the row's own operator.
    """
    op = kernel or row.op
    if any(has_empty_piece(value.layout) for value in operands):
        shapes = tuple(None if layout is None else local_shape(layout) for layout in layouts)
        metas = row.outs or (((), row.dtype),)
        dtypes = tuple(None if meta is None else meta[1] for meta in metas)
        op, args = UNLESS_EMPTY, (op, shapes, dtypes, *args)
    if row.outs is None:
        return ctx.emit(op, args, layouts[0] or whole(()), kwargs=row.kwargs)
    return ctx.emit_many(op, args, layouts, kwargs=row.kwargs)
