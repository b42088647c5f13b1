"""Rules of random masks and numbers: each rank draws the piece that it uses, by global positions."""

from __future__ import annotations

from ...errors import InternalError
from ...ir.annotated import AnnotatedValue, PerCoordinate
from ...ir.graph import Row
from ...layout.layout import Axis, Coordinate, Factor, Layout, make_layout
from ..rules import Result, RuleContext, contrib_factor, local_shape, sample_factor
from .pointwise_rules import meet_product, one_batch_sum, settled_over_ranks


def by_position(ctx: RuleContext, row: Row, layout: Layout) -> AnnotatedValue | None:
    """A mask, or numbers, in any cut; None where a micro-batch has other rows than its own, of a slice."""
    cut = layout.cut(ranks=False)
    if cut is not None and cut[1] != sample_factor(ctx, cut[1].size):
        return None
    return _drawn(ctx, row, layout)


def _drawn(ctx: RuleContext, row: Row, layout: Layout) -> AnnotatedValue:
    key, operator, kind, _, dtype = row.args
    batch = ctx.batch
    parts = PerCoordinate(lambda at: tuple(_part(factor, batch, at) for factor in layout.factors()))
    args = (ctx.operand(key), operator, kind, parts, local_shape(layout), dtype)
    return ctx.emit(row.op.removesuffix(".default"), args, layout, dtype=row.dtype)


def _part(factor: Factor, batch: int, at: Coordinate) -> tuple[int, tuple[tuple[int, int], ...], int]:
    """(size, intervals, elements per sample), as `counter_random.Part` says.

    A micro-batch's rows count from its first sample, which the key holds: micro-batches of one size
    run the same code.
    """
    held = factor.held(at)
    if factor.axis is not Axis.BATCH:
        return factor.size, held, 0
    per_sample, rest = divmod(factor.size, batch)
    if rest or len(held) != 1 or held[0][0] % per_sample:
        raise InternalError(
            f"samples {held} of {factor.size} elements are not the rows of a micro-batch",
            fix="report this model and strategy",
        )
    ((low, high),) = held
    return factor.size, ((0, high - low),), per_sample


def masked(ctx: RuleContext, row: Row) -> Result:
    """A value times a mask and a scale, linear in the value.

    A pending sum over ranks is settled first, so that under sequence parallelism each rank draws the
    mask of its own tokens only.
    """
    value, drawn = one_batch_sum(ctx, ctx.operand(row.args[0]), ctx.settle(ctx.operand(row.args[1])))
    if contrib_factor(value.layout) is None or Axis.TENSOR in value.layout.partial:
        value = settled_over_ranks(ctx, value)
    pair = {0: value, 1: drawn}
    dims = meet_product(ctx, pair, row.shape or ())
    return ctx.emit(row.op, (pair[0], pair[1], *row.args[2:]), make_layout(dims, value.layout.partial))
