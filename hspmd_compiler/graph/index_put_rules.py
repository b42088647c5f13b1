"""Rules of values put, or added, where indices say: the gradients of advanced indexing.

A table that is indexed by values per token gets addends from every token; a value per sample that is
indexed alike for all samples, or by a place per sample, keeps its samples apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..annotations.layout import Layout, make_layout, sum_axis
from ..errors import DeduceError
from .annotated import AnnotatedValue
from .constant_rules import FILLS, fill_value
from .cuts import argument, exact, whole_dim
from .ir import Row
from .lookup_rules import count_samples, counted_dim, counts_up
from .pointwise_rules import copies, join_dims, operand_layout
from .rules import Result, RuleContext, items, rule_for, uncut

PUTS = ("aten.index_put.default", "aten._unsafe_index_put.default")


@dataclass(frozen=True, slots=True)
class _Put:
    """The operands of a row. indices: one for each dim that is indexed, from `first` on."""

    row: Row
    base: AnnotatedValue
    values: AnnotatedValue
    first: int
    indices: tuple[AnnotatedValue, ...]

    @property
    def rank(self) -> int:
        """Dims of the values that stand for the indexed ones."""
        return len(self.picked)

    @property
    def picked(self) -> tuple[int, ...]:
        """Shape in which the indices meet."""
        rank = max(len(index.layout.dims) for index in self.indices)
        shapes = [index.layout.shape for index in self.indices]
        filled = [(*(1,) * (rank - len(shape)), *shape) for shape in shapes]
        return tuple(max(sizes, key=lambda size: size != 1) for sizes in zip(*filled, strict=True))

    @property
    def fits(self) -> bool:
        """Whether the values have one element per place, none repeated by broadcasting."""
        shape, end = self.base.layout.shape, self.first + len(self.indices)
        return self.values.layout.shape == (*shape[: self.first], *self.picked, *shape[end:])


@rule_for(*PUTS)
def index_put(ctx: RuleContext, row: Row) -> Result:
    """By what is indexed: inner dims, the samples in their order, or the rows of a table."""
    put = _operands(ctx, row)
    by_batch = [v for v in (*put.indices, put.values) if v.layout.cut(ranks=False) is not None]
    if put.first == 0 and not by_batch:
        return _within(ctx, put)
    if not put.fits or any(index.dtype is torch.bool for index in put.indices):
        raise _unsupported(row, "by a mask, or one value in several places")
    if put.first:
        return _within(ctx, put)
    if counts_up(ctx, items(row.args[1])[0], put.base.layout.shape[0]):
        return _per_sample(ctx, put)
    return _into_table(ctx, put)


def _operands(ctx: RuleContext, row: Row) -> _Put:
    base, values = (ctx.settle(ctx.operand(row.args[position])) for position in (0, 2))
    indices = items(row.args[1])
    first = next(place for place, index in enumerate(indices) if index is not None)
    if None in indices[first:]:
        raise _unsupported(row, "in dims that are not neighbours")
    return _Put(row, base, values, first, tuple(ctx.settle(ctx.operand(i)) for i in indices[first:]))


def _emit(
    ctx: RuleContext,
    put: _Put,
    base: AnnotatedValue,
    indices: Sequence[AnnotatedValue],
    values: AnnotatedValue,
    layout: Layout,
) -> AnnotatedValue:
    met = (*(None for _ in range(put.first)), *indices)
    return ctx.emit(put.row.op, (base, met, values, *put.row.args[3:]), layout, kwargs=put.row.kwargs)


def _within(ctx: RuleContext, put: _Put) -> AnnotatedValue:
    """Alike for every sample: dims before the first index are parallel, the others whole."""
    base, values = (_whole_from(ctx, value, put.first) for value in (put.base, put.values))
    shared = [make_layout(value.layout.dims[: put.first]) for value in (base, values)]
    dims = join_dims(shared, shared[0].shape)
    base, values = (
        ctx.convert(value, make_layout((*dims, *value.layout.dims[put.first :]))) for value in (base, values)
    )
    indices = [_whole(ctx, index) for index in put.indices]
    return _emit(ctx, put, base, indices, values, base.layout)


def _per_sample(ctx: RuleContext, put: _Put) -> AnnotatedValue:
    """Values of sample i go into row i: a piece counts its own samples."""
    counting = put.indices[0].layout
    place = counted_dim(counting) + put.rank - len(counting.dims)
    values = put.values
    for dim in range(len(values.layout.dims)):
        values = values if dim == place else whole_dim(ctx, values, dim)
    values = ctx.convert(values, uncut(values.layout, ranks=True))
    samples = values.layout.dims[place]
    if len(samples) != 1:
        raise _unsupported(put.row, "where samples are merged with another dim")
    base = _whole_from(ctx, put.base, 1)
    base = ctx.convert(base, make_layout((samples, *base.layout.dims[1:])))
    dims, shape = values.layout.dims[: put.rank], values.layout.shape[: put.rank]
    others = [ctx.convert(index, operand_layout(index, dims, shape)) for index in put.indices[1:]]
    counted = count_samples(ctx, put.indices[0], samples)
    return _emit(ctx, put, base, [counted, *others], values, base.layout)


def _into_table(ctx: RuleContext, put: _Put) -> AnnotatedValue:
    """Every token adds to a table of zeros: pieces of tokens make addends."""
    if not argument(put.row, 3, "accumulate", False) or not _is_zero(ctx, put.row):
        raise _unsupported(put.row, "into rows that other samples write, too")
    values = exact(ctx, put.values)
    tokens = make_layout(values.layout.dims[: put.rank])
    others = [uncut(index.layout, ranks=True) for index in put.indices]
    dims = join_dims([tokens, *others], tokens.shape)
    indices = [ctx.convert(index, operand_layout(index, copies(dims), tokens.shape)) for index in put.indices]
    behind = values.layout.dims[put.rank :]
    values = ctx.convert(values, make_layout((*dims, *behind)))
    base = _whole_from(ctx, put.base, 0)
    base = ctx.convert(base, make_layout((*base.layout.dims[: len(indices)], *behind)))
    partial = frozenset(sum_axis(f.axis) for dim in dims for f in dim if f.axis is not None)
    return _emit(ctx, put, base, indices, values, make_layout(base.layout.dims, partial))


def _is_zero(ctx: RuleContext, row: Row) -> bool:
    made = ctx.row_of(row.args[0])
    return made.op in FILLS and fill_value(made) == 0


def _whole_from(ctx: RuleContext, value: AnnotatedValue, first: int) -> AnnotatedValue:
    for dim in range(first, len(value.layout.dims)):
        value = whole_dim(ctx, value, dim)
    return value


def _whole(ctx: RuleContext, value: AnnotatedValue) -> AnnotatedValue:
    """A value whole on every rank and in every micro-batch."""
    return ctx.convert(value, uncut(uncut(value.layout, ranks=True), ranks=False))


def _unsupported(row: Row, how: str) -> DeduceError:
    return DeduceError(
        f"{row.op} writes {how}",
        at=row.where,
        rule="where the batch is split, values are put alike for every sample, row by row, or added to zeros",
        fix="use one pipeline with one micro-batch, or write the selection per sample (torch.where, scatter)",
    )
