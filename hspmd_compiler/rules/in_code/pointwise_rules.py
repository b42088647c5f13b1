"""Rules of pointwise operators: what is linear, what settles pending sums, how operands meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import prod

from ...ir.annotated import AnnotatedValue, PerCoordinate
from ...ir.graph import Ref, Row, map_refs, refs_of
from ...layout.layout import Axis, Dim, Factor, Layout, dim_cut, dim_size, make_layout
from ..addends import as_equal_addends
from ..rules import Result, RuleContext, at_first, consistent, contrib_factor, is_addend, pull_for, uncut
from .pointwise_operators import CHOICES, LAZY, LINEAR, PRODUCTS, SETTLING, SUMS


def broadcast_dims(layout: Layout, shape: Sequence[int]) -> list[Dim | None]:
    """The operand's dims against the result's from the right, None where it is broadcast."""
    missing = len(shape) - len(layout.dims)
    aligned: list[Dim | None] = [None] * missing
    for size, dim in zip(shape[missing:], layout.dims, strict=True):
        aligned.append(None if dim_size(dim) == 1 and size != 1 else dim)
    return aligned


def held_fraction(dim: Dim) -> float:
    """The share of a dim that an average coordinate holds."""
    shares = [
        sum(high - low for held in sets for low, high in held) / max(1, len(sets) * factor.size)
        for factor in dim
        for sets in (factor.sets, factor.by_rank)
        if sets is not None
    ]
    return prod(shares)


def most_split(candidates: Sequence[Dim]) -> Dim:
    """Of several cuts of one dim the one to compute in: rows at their experts' owners stay there; else
    batch-split first, then the finest."""
    return min(
        candidates,
        key=lambda dim: (not is_routed(dim), dim_cut(dim, ranks=False) is None, held_fraction(dim)),
    )


def is_routed(dim: Dim) -> bool:
    """Whether its rows lie at the owners of their experts."""
    return any(factor.routed is not None for factor in dim)


def join_dims(layouts: Sequence[Layout], shape: Sequence[int]) -> tuple[Dim, ...]:
    """The dims in which operands with these layouts meet; the ranks cut at most one dim."""
    return _join_dims(tuple(layouts), tuple(shape))


@cache
def _join_dims(layouts: tuple[Layout, ...], shape: tuple[int, ...]) -> tuple[Dim, ...]:
    aligned = [broadcast_dims(layout, shape) for layout in layouts]
    dims: list[Dim] = []
    for index, size in enumerate(shape):
        candidates = [dims_of[index] for dims_of in aligned]
        present = [dim for dim in candidates if dim is not None]
        dims.append(most_split(present) if present else (Factor(size),))
    samples = [index for index, dim in enumerate(dims) if dim_cut(dim, ranks=False) is not None]
    for index in samples[1:]:  # each sample beside each: one side's are gathered
        dims[index] = uncut(make_layout((dims[index],)), ranks=False).dims[0]
    cut = [index for index, dim in enumerate(dims) if dim_cut(dim, ranks=True) is not None]
    if len(cut) > 1:
        dims = _keep_one_cut(dims, cut)
    return make_layout(tuple(dims)).dims


def _keep_one_cut(dims: list[Dim], cut: list[int]) -> list[Dim]:
    """Rows stay at their experts' owners; features stay cut rather than tokens; else the first."""

    def is_sequence(index: int) -> bool:
        factor = dim_cut(dims[index], ranks=True)
        return factor is not None and factor.axis is Axis.SEQUENCE

    kept = min(cut, key=lambda index: (not is_routed(dims[index]), is_sequence(index), index))
    return [
        dim if index == kept else tuple(factor.without(ranks=True) for factor in dim)
        for index, dim in enumerate(dims)
    ]


def operand_layout(value: AnnotatedValue, dims: Sequence[Dim], shape: Sequence[int]) -> Layout:
    """The layout in which one operand meets `dims`: broadcast dims stay whole."""
    return _operand_layout(value.layout, tuple(dims), tuple(shape))


@cache
def _operand_layout(layout: Layout, dims: tuple[Dim, ...], shape: tuple[int, ...]) -> Layout:
    missing = len(shape) - len(layout.dims)
    target = [
        () if dim_size(own) == 1 and size != 1 else dim
        for own, dim, size in zip(layout.dims, dims[missing:], shape[missing:], strict=True)
    ]
    return make_layout(tuple(target), layout.partial)


def localized(ctx: RuleContext, row: Row, values: dict[int, AnnotatedValue]) -> tuple[object, ...]:
    """The row's arguments with its Refs replaced by converted operands."""
    return tuple(map_refs(argument, lambda ref: values[ref.id]) for argument in row.args)


def operands(ctx: RuleContext, row: Row) -> dict[int, AnnotatedValue]:
    """All operands by the id of their row."""
    return {ref.id: ctx.operand(ref) for ref in refs_of(row.args)}


def meet(ctx: RuleContext, values: dict[int, AnnotatedValue], shape: Sequence[int]) -> tuple[Dim, ...]:
    """Convert all operands (in place) to the dims in which they meet."""
    dims = join_dims([value.layout for value in values.values()], shape)
    plain = consistent(make_layout(dims)).dims
    for key, value in values.items():
        wanted = dims if contrib_factor(value.layout) is not None else plain
        values[key] = ctx.convert(value, operand_layout(value, wanted, shape))
    return dims


def settling(ctx: RuleContext, row: Row) -> Result:
    """Operators that are not linear: operands are settled, then meet."""
    values = operands(ctx, row)
    if row.op.endswith("_backward.default"):
        return _apply(ctx, row, settled_but_batch(ctx, row, values))
    if row.op in CHOICES and any(is_batch_sum(value) for value in values.values()):
        return _chosen(ctx, row, values)
    return _apply(ctx, row, {key: ctx.settle(value) for key, value in values.items()})


def is_batch_sum(value: AnnotatedValue) -> bool:
    """Whether it is a pending sum over the batch that is not known before the step."""
    return Axis.BATCH in value.layout.partial and not value.pure


def is_per_sample(value: AnnotatedValue) -> bool:
    """Whether micro-batches have their samples of it."""
    return value.layout.cut(ranks=False) is not None


def _chosen(ctx: RuleContext, row: Row, values: dict[int, AnnotatedValue]) -> AnnotatedValue:
    """Each element is one of the operands': linear in all of them but the condition."""
    refs, condition = [ref.id for ref in refs_of(row.args)], CHOICES[row.op]
    keys = [key for place, key in enumerate(refs) if place != condition]
    found = dict(zip(keys, jointly_linear(ctx, row, [values[key] for key in keys]), strict=True))
    if condition is not None:
        key = refs[condition]
        found[key] = ctx.settle(values[key])
        if is_per_sample(found[key]):  # samples choose parts of a sum over the batch
            return _apply(ctx, row, {key: ctx.settle(value) for key, value in values.items()})
    args = tuple(first_only(item) if isinstance(item, (int, float)) else item for item in row.args)
    return _apply(ctx, replace(row, args=args), found)


def first_only(number: float) -> PerCoordinate:
    """A number that is added to a sum over the batch once."""
    return PerCoordinate(lambda at: number if at.batch == 0 else 0 * number, by_position=True)


def jointly_linear(ctx: RuleContext, row: Row, values: Sequence[AnnotatedValue]) -> list[AnnotatedValue]:
    """Operands of an operator that is linear in all of them together: beside a pending sum over the batch
    the others, which are the same for all samples, count once."""
    if not any(is_batch_sum(value) for value in values) or any(is_per_sample(value) for value in values):
        return [ctx.settle(value) for value in values]
    return [
        settled_over_ranks(ctx, value) if is_batch_sum(value) else _once(ctx, ctx.settle(value))
        for value in values
    ]


def settled_but_batch(
    ctx: RuleContext, row: Row, values: dict[int, AnnotatedValue]
) -> dict[int, AnnotatedValue]:
    """Operands of a derivative, linear in its first one: a gradient of a value that parameters alone make
    may stay a pending sum over the batch, where nothing else depends on samples."""
    first, *others = values
    if Axis.BATCH not in values[first].layout.partial or not all(values[key].static for key in others):
        return {key: ctx.settle(value) for key, value in values.items()}
    gradient = settled_over_ranks(ctx, values[first])
    return {first: gradient} | {key: ctx.settle(values[key]) for key in others}


def _apply(ctx: RuleContext, row: Row, values: dict[int, AnnotatedValue]) -> AnnotatedValue:
    shape = row.shape or ()
    dims = meet(ctx, values, shape)
    partial = frozenset().union(*(value.layout.partial for value in values.values()))
    return ctx.emit(row.op, localized(ctx, row, values), make_layout(dims, partial), kwargs=row.kwargs)


def sums(ctx: RuleContext, row: Row) -> Result:
    """Sums: addends stay addends; a settled operand settles the other one into its own layout."""
    refs = list(refs_of(row.args))
    if len(refs) == 1:
        return _plus_literal(ctx, row, ctx.operand(refs[0]))
    first, second = (ctx.operand(ref) for ref in refs[:2])
    first, second = _beside_samples(ctx, first, second), _beside_samples(ctx, second, first)
    shape = row.shape or ()
    if first.layout.shape == second.layout.shape and is_addend(first.layout) and is_addend(second.layout):
        first, second = as_equal_addends(ctx, first, second)
    elif is_addend(first.layout) or is_addend(second.layout):
        first, second = _settle_into(ctx, first, second), _settle_into(ctx, second, first)
    first, second = _same_batch_sum(ctx, first, second)
    pair = {0: first, 1: second}
    dims = meet(ctx, pair, shape)
    layout = make_layout(dims, first.layout.partial | second.layout.partial)
    return ctx.emit(row.op, (pair[0], pair[1], *row.args[2:]), layout, kwargs=row.kwargs)


def _settle_into(ctx: RuleContext, value: AnnotatedValue, other: AnnotatedValue) -> AnnotatedValue:
    """Settle addends straight into the other operand's layout where that is settled and of equal shape."""
    if not is_addend(value.layout):
        return value
    if (
        is_addend(other.layout)
        or other.layout.shape != value.layout.shape
        or other.layout.cut(ranks=True) is None
    ):
        return settled_over_ranks(ctx, value)
    batch = uncut(value.layout, ranks=True)
    target = join_dims([batch, other.layout], other.layout.shape)
    return ctx.convert(value, make_layout(target, value.layout.partial - {Axis.TENSOR}))


def _beside_samples(ctx: RuleContext, value: AnnotatedValue, other: AnnotatedValue) -> AnnotatedValue:
    """A sum over the batch that meets a value per sample is the same for all of them."""
    return ctx.settle(value) if Axis.BATCH in value.layout.partial and is_per_sample(other) else value


def _same_batch_sum(
    ctx: RuleContext, first: AnnotatedValue, second: AnnotatedValue
) -> tuple[AnnotatedValue, AnnotatedValue]:
    """A term without a pending sum over the batch counts once: on the first coordinate only."""
    if (Axis.BATCH in first.layout.partial) == (Axis.BATCH in second.layout.partial):
        return first, second
    if Axis.BATCH in first.layout.partial:
        return first, _once(ctx, second)
    return _once(ctx, first), second


def _once(ctx: RuleContext, value: AnnotatedValue) -> AnnotatedValue:
    layout = make_layout(value.layout.dims, value.layout.partial | {Axis.BATCH})
    return ctx.emit("hspmd.zero_unless", (value, at_first(Axis.BATCH)), layout, dtype=value.dtype)


def _plus_literal(ctx: RuleContext, row: Row, value: AnnotatedValue) -> AnnotatedValue:
    """A constant is added once: addends are settled, a pending sum over the batch adds it at one place."""
    if is_addend(value.layout):
        value = ctx.convert(value, consistent(value.layout))
    args = list(row.args)
    position = next(i for i, argument in enumerate(args) if not isinstance(argument, Ref))
    if Axis.BATCH in value.layout.partial:
        args[position] = first_only(args[position])  # type: ignore[arg-type]
    args = [value if isinstance(argument, Ref) else argument for argument in args]
    return ctx.emit(row.op, tuple(args), value.layout, kwargs=row.kwargs)


def products(ctx: RuleContext, row: Row) -> Result:
    """Products: one operand with addends passes them, the other is settled (linear in one factor).

    A whole pending sum passes only a pure factor (a rotary table, a count): through activations it
    would split into two paths and double the reductions of the backward.
    """
    refs = list(refs_of(row.args))
    if len(refs) == 1:
        value = ctx.operand(refs[0])
        if not isinstance(row.args[0], Ref) and row.op.startswith("aten.div"):
            value = ctx.settle(value)
        return ctx.emit(row.op, localized(ctx, row, {refs[0].id: value}), value.layout, kwargs=row.kwargs)
    divides = row.op.startswith("aten.div")
    first, second = one_batch_sum(ctx, *(ctx.operand(ref) for ref in refs[:2]), divides=divides)
    first_passes = _may_pass(first, second)
    second_passes = not divides and not first_passes and _may_pass(second, first)
    first = first if first_passes else _settled_factor(ctx, first, second)
    second = second if second_passes else _settled_factor(ctx, second, first)
    pair = {0: first, 1: second}
    dims = meet_product(ctx, pair, row.shape or ())
    partial = first.layout.partial | second.layout.partial
    return ctx.emit(row.op, (pair[0], pair[1], *row.args[2:]), make_layout(dims, partial), kwargs=row.kwargs)


def _may_pass(value: AnnotatedValue, other: AnnotatedValue) -> bool:
    """Whether the addends of `value` may pass a product with `other`."""
    if Axis.TENSOR in value.layout.partial:
        return other.pure and not is_addend(other.layout) and other.layout.cut(ranks=True) is None
    return contrib_factor(value.layout) is not None and not is_addend(other.layout)


def _settled_factor(ctx: RuleContext, value: AnnotatedValue, other: AnnotatedValue) -> AnnotatedValue:
    """Settle over ranks; over the batch only where both factors are pending, and one of them is pure."""
    if Axis.BATCH in value.layout.partial and value.pure:
        return ctx.settle(value)
    if not is_addend(value.layout):
        return value
    return settled_over_ranks(ctx, value)


def settled_over_ranks(ctx: RuleContext, value: AnnotatedValue) -> AnnotatedValue:
    """Without addends of ranks; a pending sum over the batch stays, for linear operators pass it."""
    if Axis.BATCH in value.layout.partial:
        return ctx.convert(value, consistent(value.layout))
    return ctx.settle(value)


def one_batch_sum(
    ctx: RuleContext, first: AnnotatedValue, second: AnnotatedValue, *, divides: bool = False
) -> tuple[AnnotatedValue, AnnotatedValue]:
    """The factors of a product, at most one a pending sum over the batch: beside what all samples share.

    Of two sums the pure one is settled, which is known before the passes.
    """
    if Axis.BATCH in second.layout.partial and (divides or is_per_sample(first)):
        second = ctx.settle(second)
    if Axis.BATCH in first.layout.partial and is_per_sample(second):
        first = ctx.settle(first)
    if Axis.BATCH in first.layout.partial and Axis.BATCH in second.layout.partial:
        if first.pure and not second.pure:
            return ctx.settle(first), second
        return first, ctx.settle(second)
    return first, second


def meet_product(ctx: RuleContext, pair: dict[int, AnnotatedValue], shape: Sequence[int]) -> tuple[Dim, ...]:
    """Where one factor has addends, its sets decide and the other one is cut to consistent copies of them."""
    leading = next((value for value in pair.values() if contrib_factor(value.layout) is not None), None)
    if leading is None:
        return meet(ctx, pair, shape)
    other = next(value for value in pair.values() if value is not leading)
    dims = join_dims([leading.layout, uncut(other.layout, ranks=True)], shape)
    plain = consistent(make_layout(dims)).dims
    if (
        consistent(make_layout(dims)).cut(ranks=True) is None
        and make_layout(dims).cut(ranks=True) is not None
    ):
        plain = copies(dims)
    for key, value in pair.items():
        wanted = dims if value is leading else plain
        pair[key] = ctx.convert(value, operand_layout(value, wanted, shape))
    return dims


def copies(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """The same cuts with consistent copies in place of addends."""
    return tuple(tuple(factor.copies() for factor in dim) for dim in dims)


@pull_for(*SETTLING, *SUMS, *PRODUCTS, *LINEAR, *LAZY)
def pull_pointwise(ctx: RuleContext, row: Row, layout: Layout) -> AnnotatedValue | None:
    """A pure pointwise value is computed directly in the layout asked for."""
    values = {
        ref.id: ctx.convert(value, operand_layout(value, layout.dims, row.shape or ()))
        for ref in refs_of(row.args)
        for value in (ctx.settle(ctx.operand(ref)),)
    }
    return ctx.emit(LAZY.get(row.op, row.op), localized(ctx, row, values), layout, kwargs=row.kwargs)


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
