"""Deduces one row from its rule's value: settle, make whole, take the choice or meet, convert, emit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..ir.annotated import AnnotatedValue
from ..ir.graph import Ref, Row, map_refs
from ..layout.layout import Axis, Layout, has_empty_piece, whole
from .call_layouts import met_layouts, product_layouts
from .call_rule import Alternative, CallRule, argument_place, has_fractions
from .cuts import dense, exact, whole_dim
from .in_code.contraction_rules import Contraction, add_once, contract, plain_at
from .in_code.pointwise_operators import MOVES
from .in_code.pointwise_rules import is_per_sample, jointly_linear, settled_but_batch, settled_over_ranks
from .in_code.reduction_rules import mean
from .op_rule import OP_RULES, Dims, Linear, OpRule, parse
from .rules import Result, RuleContext, local_shape, rule_for, uncut

UNLESS_EMPTY = "hspmd.unless_empty"
Values = list[AnnotatedValue]
MOVED = frozenset((*MOVES, "aten.t.default", "aten.transpose.int", "aten.permute.default"))
"""Layout operators: a conversion of what they give moves before them."""


def put(rule: OpRule) -> None:
    """One line of the table, from which deduction, dims, alternatives, flops and cases derive."""
    rule_for(rule.op)(apply)
    OP_RULES[rule.op] = rule


def line(op: str, text: str, **more: Any) -> None:
    """A line by its letters; more: as `parse` takes them."""
    put(parse(op, text, **more))


def apply(ctx: RuleContext, row: Row) -> Result:
    """The rule of every operator that has a value."""
    call, choice = ctx.call_rule(row), ctx.choice(row)
    if call.rule.code is not None and choice is None:
        return call.rule.code(ctx, row)  # type: ignore[no-any-return]
    return by_letters(ctx, row, call, choice)


def by_letters(ctx: RuleContext, row: Row, call: CallRule, choice: Alternative | None = None) -> Result:
    """What the letters say, without a pattern's own code unless a planner placed its operands."""
    rule = call.rule
    refs = call.refs(row)
    values = _operands(ctx, rule, refs)
    if choice is not None:
        values = _placed(ctx, rule, values, values, choice.operands)
        if rule.code is not None and rule.linear not in (Linear.EACH, Linear.TOGETHER):
            placed = {ref.id: value for ref, value in zip(refs, _dense(ctx, rule, values), strict=True)}
            return rule.code(Chosen(ctx, placed), row)  # type: ignore[no-any-return]
    pending = choice is not None and rule.linear in (Linear.EACH, Linear.TOGETHER)
    return computed(ctx, row, call, refs, values, pending=pending)


def computed(
    ctx: RuleContext,
    row: Row,
    call: CallRule,
    refs: Sequence[Ref],
    values: Values,
    *,
    pending: bool = False,
) -> Result:
    """A call of these operands. pending: sums among them stay so."""
    rule, given = call.rule, values
    if call.contracts:
        return _contracted(ctx, row, call, refs, values)
    if not pending:
        values = _carried(ctx, row, call, values)
    values = _wholes(ctx, call, values)
    if call.summed:
        values = [_once(ctx, call, v, dims) for v, dims in zip(values, call.operands, strict=True)]
    layouts = tuple([value.layout for value in values])
    if rule.leads is not None:
        layouts = tuple([own if i == rule.leads else uncut(own, ranks=True) for i, own in enumerate(layouts)])
    targets, results = met_layouts(call, layouts)
    values = _placed(ctx, rule, given, values, targets)
    return _emitted(ctx, row, call, refs, _dense(ctx, rule, values), results)


def _operands(ctx: RuleContext, rule: OpRule, refs: Sequence[Ref]) -> Values:
    """The operands; what is added is asked for, and so gathered, when the product's are there."""
    if rule.added is None or rule.added >= len(refs):
        return [ctx.operand(ref) for ref in refs]
    others = [ctx.operand(ref) for place, ref in enumerate(refs) if place != rule.added]
    return [*others[: rule.added], ctx.operand(refs[rule.added]), *others[rule.added :]]


def _placed(
    ctx: RuleContext, rule: OpRule, given: Values, values: Values, layouts: Sequence[Layout]
) -> Values:
    """The values in these layouts; what a kernel reads without strides is copied where it isn't as given."""
    made: Values = []
    for place, (value, layout) in enumerate(zip(values, layouts, strict=True)):
        moved = ctx.convert(value, layout)
        copied = place in rule.copied and moved is not given[place]
        made.append(dense(ctx, moved) if copied else moved)
    return made


def _dense(ctx: RuleContext, rule: OpRule, values: Values) -> Values:
    """A copy of what a kernel reads by how it lies in memory."""
    if not rule.dense:
        return values
    return [dense(ctx, value) if place in rule.dense else value for place, value in enumerate(values)]


def _emitted(
    ctx: RuleContext,
    row: Row,
    call: CallRule,
    refs: Sequence[Ref],
    values: Values,
    results: Sequence[Layout | None],
) -> Result:
    """The local rows: by the rule's own code, else the operator itself with local literals."""
    rule = call.rule
    if rule.emit is not None:
        return rule.emit(ctx, row, call, values, results)  # type: ignore[no-any-return]
    by_id = {ref.id: value for ref, value in zip(refs, values, strict=True)}
    args = row.args
    if rule.shape:
        place = argument_place(row.op, rule.shape)[0]
        args = (*args[:place], local_shape(_first(results)), *args[place + 1 :])
    args = tuple([map_refs(argument, lambda ref: by_id[ref.id]) for argument in args])
    if rule.sized:
        args = (args[0], local_shape(_first(results)), *args[1:])
    if rule.scale is not None:
        return mean(ctx, row, call, args, _first(results), _cut_letters(call, values))
    op = rule.kernel or row.op
    if rule.empty_ok and row.outs is None:
        via = values[0] if op in MOVED else None
        return ctx.emit(op, args, _first(results), kwargs=row.kwargs, via=via)
    if rule.empty_ok:
        return ctx.emit_many(op, args, results, kwargs=row.kwargs)
    return _emit_unless_empty(ctx, row, args, results, values, op)


def _emit_unless_empty(
    ctx: RuleContext,
    row: Row,
    args: tuple[object, ...],
    layouts: Sequence[Layout | None],
    operands: Iterable[AnnotatedValue],
    op: str,
) -> Result:
    """The row with local arguments; a rank that holds nothing of an operand has zeros as results."""
    if any(has_empty_piece(value.layout) for value in operands):
        shapes = tuple(None if layout is None else local_shape(layout) for layout in layouts)
        metas = row.outs or (((), row.dtype),)
        dtypes = tuple(None if meta is None else meta[1] for meta in metas)
        op, args = UNLESS_EMPTY, (op, shapes, dtypes, *args)
    if row.outs is None:
        return ctx.emit(op, args, layouts[0] or whole(()), kwargs=row.kwargs)
    return ctx.emit_many(op, args, layouts, kwargs=row.kwargs)


def _cut_letters(call: CallRule, values: Values) -> frozenset[str]:
    return frozenset(
        name
        for value, dims in zip(values, call.operands, strict=True)
        for names, dim in zip(dims, value.layout.dims, strict=True)
        if any(factor.axis is not None for factor in dim)
        for name in names
    )


def _first(results: Sequence[Layout | None]) -> Layout:
    assert results[0] is not None
    return results[0]


def _carried(ctx: RuleContext, row: Row, call: CallRule, values: Values) -> Values:
    """What passes pending sums, the rest settled."""
    linear = call.rule.linear
    floats = (row.dtype is None or has_fractions(row.dtype)) and has_fractions(values[0].dtype)
    if linear is Linear.ONE and floats:
        return values
    if (
        linear is Linear.BATCH
        and floats
        and row.dtype is not None
        and not any(map(is_per_sample, values[1:]))
    ):
        return [settled_over_ranks(ctx, values[0]), *(ctx.settle(value) for value in values[1:])]
    if linear is Linear.TOGETHER and floats:
        return jointly_linear(ctx, row, values)
    if linear is Linear.JOINTLY:
        return _jointly(ctx, row, call, values)
    if linear is Linear.FIRST:
        return list(settled_but_batch(ctx, row, dict(enumerate(values))).values())
    return [ctx.settle(value) for value in values]


def _jointly(ctx: RuleContext, row: Row, call: CallRule, values: Values) -> Values:
    """Sums over the batch pass beside what is the same for all samples."""
    carries = call.rule.carries or tuple(range(len(values)))
    others = [value for place, value in enumerate(values) if place not in carries]
    if any(map(is_per_sample, others)):
        return [ctx.settle(value) for value in values]
    carried = iter(jointly_linear(ctx, row, [values[place] for place in carries]))
    return [next(carried) if place in carries else ctx.settle(value) for place, value in enumerate(values)]


def _wholes(ctx: RuleContext, call: CallRule, values: Values) -> Values:
    made = []
    for value, places in zip(values, call.whole_places, strict=True):
        for place in places:
            value = whole_dim(ctx, value, place)
        made.append(value)
    return made


def _once(ctx: RuleContext, call: CallRule, value: AnnotatedValue, dims: Dims) -> AnnotatedValue:
    """Each element of a summed dim is counted by one holder."""
    cut = value.layout.cut(ranks=True)
    return exact(ctx, value) if cut is not None and not call.summed.isdisjoint(dims[cut[0]]) else value


def _contracted(ctx: RuleContext, row: Row, call: CallRule, refs: Sequence[Ref], values: Values) -> Result:
    """A product that sums over a letter; a bias is added once."""
    values = _wholes(ctx, call, values)
    added, ((first, second), mine, others, out, summed) = call.rule.added, call.factors
    biased = added is not None and added < len(values)
    left, right = values[first], values[second]
    if biased:
        left = plain_at(ctx, left, next((i for i, n in enumerate(mine) if n in out and n not in others), -1))
        right = plain_at(
            ctx, right, next((i for i, n in enumerate(others) if n in out and n not in mine), -1)
        )
    letters = Contraction(mine, others, out, summed)
    values[first], values[second], met = _as_before(ctx, row, call, letters, left, right)
    results, bias = product_layouts(call, met)
    if biased and added is not None:
        values[added] = add_once(ctx, values[added], bias)
    return _emitted(ctx, row, call, refs, _dense(ctx, call.rule, values), results)


def _as_before(
    ctx: RuleContext,
    row: Row,
    call: CallRule,
    letters: Contraction,
    left: AnnotatedValue,
    right: AnnotatedValue,
) -> tuple[AnnotatedValue, AnnotatedValue, Layout]:
    """`contract`, whose conversions depend on layouts alone: a call like an earlier one makes the same."""
    key = (call, left.layout, right.layout, left.static, right.static, left.pure, right.pure, ctx.stage)
    plan = ctx.products.get(key)
    if plan is None:
        log = ConversionLog(ctx, [left, right], replays=left is not right)
        left, right, met = contract(log, row, letters, left, right)  # type: ignore[arg-type]
        if log.replays:
            ctx.products[key] = (tuple(log.steps), met)
        return left, right, met
    pair = [left, right]
    for which, target in plan[0]:
        pair[which] = ctx.convert(pair[which], target)
    return pair[0], pair[1], plan[1]


@dataclass(slots=True)
class ConversionLog:
    """A context that notes the conversions of a product's operands, in order.

    replays: whether they can be made again by layouts alone.
    """

    ctx: RuleContext
    current: Values
    replays: bool
    steps: list[tuple[int, Layout]] = field(default_factory=list)

    @property
    def exchanges_rows(self) -> bool:
        """As the context says."""
        return self.ctx.exchanges_rows

    def convert(self, value: AnnotatedValue, layout: Layout) -> AnnotatedValue:
        """As the context does."""
        return self._noted(value, self.ctx.convert(value, layout))

    def settle(self, value: AnnotatedValue) -> AnnotatedValue:
        """As the context does; a sum over the batch is settled in another way than by a conversion."""
        self.replays = self.replays and Axis.BATCH not in value.layout.partial
        return self._noted(value, self.ctx.settle(value))

    def _noted(self, before: AnnotatedValue, after: AnnotatedValue) -> AnnotatedValue:
        if before is not after:
            which = 0 if before is self.current[0] else 1
            self.replays = self.replays and before is self.current[which]
            self.current[which] = after
            self.steps.append((which, after.layout))
        return after


class Chosen:
    """The context of a pattern whose operands a planner has placed."""

    def __init__(self, ctx: RuleContext, values: dict[int, AnnotatedValue]) -> None:
        self._ctx, self._values = ctx, values

    def __getattr__(self, name: str) -> object:
        return getattr(self._ctx, name)

    def operand(self, argument: object) -> AnnotatedValue:
        """An operand as it was placed."""
        found = self._values.get(argument.id) if isinstance(argument, Ref) else None
        return self._ctx.operand(argument) if found is None else found

    def optional(self, argument: object) -> AnnotatedValue | None:
        """As `operand`, or None."""
        return None if argument is None else self.operand(argument)
