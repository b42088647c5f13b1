"""The table's lines of values made from nothing: any cut, each rank makes the elements that it uses.

Fills are made in any cut, counters whole and sliced, random masks and numbers by global positions.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import InternalError
from ...ir.annotated import AnnotatedValue, PerCoordinate
from ...ir.graph import Row
from ...ir.own_names import RANDOM_MASK, RANDOM_NUMBERS
from ...layout.intervals import Intervals, shifted
from ...layout.layout import Axis, Coordinate, Factor, Layout, whole
from ..op_apply import put
from ..op_rule import OpRule, Shapes, chosen, lengths_of, numbered
from ..rules import Pull, Result, RuleContext, chosen_layout, local_shape, pull_for, sample_factor

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
DrawnPart = tuple[int, Intervals, int]
"""Size, intervals and elements per sample, as `counter_random.FactorPart`."""
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
    if str(row.dtype) == "torch.bool":
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


def by_position(ctx: RuleContext, row: Row, layout: Layout) -> AnnotatedValue | None:
    """A mask, or numbers, in any cut; None where a micro-batch has other rows than its own, of a slice."""
    cut = layout.cut(ranks=False)
    if cut is not None and cut[1] != sample_factor(ctx, cut[1].size):
        return None
    return _drawn(ctx, row, layout)


def _drawn(ctx: RuleContext, row: Row, layout: Layout) -> AnnotatedValue:
    key, operator, kind, _, dtype = row.args
    batch = ctx.batch
    made = _token_parts if ctx.by_token else _sample_parts
    apart = any(factor.by_rank is not None for factor in layout.factors())
    parts = PerCoordinate(lambda at: made(layout.factors(), batch, at), apart)
    args = (ctx.operand(key), operator, kind, parts, local_shape(layout), dtype)
    return ctx.emit(row.op.removesuffix(".default"), args, layout, dtype=row.dtype)


def _sample_parts(factors: Sequence[Factor], batch: int, at: Coordinate) -> tuple[DrawnPart, ...]:
    """Of values whose samples are numbered."""
    return tuple(_part(factor, batch, at) for factor in factors)


def _token_parts(factors: Sequence[Factor], batch: int, at: Coordinate) -> tuple[DrawnPart, ...]:
    """Of values whose tokens are numbered: row and token are one factor, and the key has the first token.

    So a micro-batch of any length draws what [1, all tokens] has at its place.
    """
    rows, *rest = factors or (Factor(1),)
    if rows.axis is not Axis.BATCH or rows.sets is None:
        return _sample_parts(factors, batch, at)
    if rows.size > batch:
        size, held, _ = _part(rows, batch, at)
        return ((size, held, 1), *_sample_parts(rest, batch, at))
    tokens, *inner = rest or (Factor(1),)
    return ((batch * tokens.size, tokens.held(at), 1), *_sample_parts(inner, batch, at))


def _part(factor: Factor, batch: int, at: Coordinate) -> DrawnPart:
    """(size, intervals, elements per sample), as `counter_random.FactorPart` says.

    A micro-batch's rows count from its first sample, which the key holds: micro-batches of one size
    run the same code.
    """
    if factor.axis is not Axis.BATCH or factor.sets is None:
        return factor.size, factor.held(at), 0
    per_sample, rest = divmod(factor.size, batch)
    rows = factor.sets[at.batch]
    if rest or len(rows) != 1 or rows[0][0] % per_sample:
        raise InternalError(
            f"samples {rows} of {factor.size} elements are not the rows of a micro-batch",
            fix="report this model and strategy",
        )
    return factor.size, shifted(factor.held(at), -rows[0][0]), per_sample


def _any_cut(row: Row, _shapes: Shapes) -> OpRule:
    """Letters of the result alone; of tensors among the arguments no element is read."""
    letters = numbered(len(row.shape or ()))
    return chosen(row, [], [letters], lengths=lengths_of(letters, row.shape or ()))


def _source(op: str, made: Pull) -> None:
    """An operator whose result is made whole unless a planner chose a cut. made: in a cut."""

    def code(ctx: RuleContext, row: Row) -> Result:
        value = made(ctx, row, chosen_layout(ctx, row) or whole(row.shape or ()))
        assert value is not None, "only a cut of samples is refused"
        return value

    put(OpRule(op, by_shapes=_any_cut, code=code, flops=0, says="any cut: made where it is used"))


for _op in FILLS:
    _source(_op, fill)
for _op in (RANDOM_MASK, RANDOM_NUMBERS):
    _source(_op, by_position)
for _op in COUNTERS:
    _source(_op, counter)
pull_for(*FILLS)(fill)
pull_for(RANDOM_MASK, RANDOM_NUMBERS)(by_position)
