"""The table's lines of norms: what is cut and what is whole, and their local rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir.annotated import AnnotatedValue
from ...ir.graph import Row
from ...layout.layout import Layout
from ..call_rule import CallRule
from ..in_code.batch_norm_rules import (
    BACKWARD,
    EVALUATION,
    TRAINING,
    WITHOUT_BUFFERS,
    batch_norm,
    batch_norm_backward,
    batch_norm_in_evaluation,
    batch_norm_without_buffers,
)
from ..in_code.reduction_rules import per_channel
from ..op_apply import put
from ..op_rule import Linear, OpRule, Ranks, by_ranks, parse
from ..rules import Result, Rule, RuleContext, items, local_sizes

GROUP_NORM = "aten.native_group_norm.default"
GROUP_NORM_BACKWARD = "aten.native_group_norm_backward.default"


def _space(row: Row) -> str:
    """Letters of the dims behind samples and channels."""
    shape = (row.outs or ())[0]
    assert shape is not None, "the normalised value is there"
    return " ".join(f"s{place}" for place in range(len(shape[0]) - 2))


def _dims(letter: str, rank: int | None, less: int) -> str:
    """Letters of an operand's dims, but for the first ones."""
    return " ".join(f"{letter}{place}" for place in range((rank or 0) - less))


def _tail(row: Row, place: int) -> str:
    """Letters of the dims that a layer norm is over."""
    return " ".join(f"l{dim}" for dim in range(len(row.args[place])))  # type: ignore[arg-type]


def _layer_norm(row: Row) -> OpRule:
    tail = _tail(row, 1)
    ones = " ".join("()" for _ in tail.split())
    text = f"... {tail}, {tail}, {tail} -> ... {tail}, ... {ones}, ... {ones}"
    return parse(row.op, text, whole=tail, empty_ok=True, flops=8)


def _layer_norm_backward(row: Row) -> OpRule:
    tail = _tail(row, 2)
    ones = " ".join("()" for _ in tail.split())
    text = f"... {tail}, ... {tail}, ... {ones}, ... {ones}, {tail}, {tail} -> ... {tail}, {tail}, {tail}"
    more = dict[str, Any](linear=Linear.FIRST, emit=layer_norm_backward, copied=(2, 3), flops=16)
    return parse(row.op, text, whole=tail, sum="...", **more)


def layer_norm_backward(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """Its kernel ignores the strides of statistics."""
    grad, value, *stats = values[:4]
    rest = iter(values[4:])
    affine = [None if argument is None else next(rest) for argument in row.args[5:7]]
    return ctx.emit_many(row.op, (grad, value, row.args[2], *stats, *affine, row.args[7]), results)


def _group_norm(row: Row) -> OpRule:
    space = _space(row)
    text = f"n (g c) {space}, (g c), (g c) -> n (g c) {space}, n g, n g"
    return parse(row.op, text, whole=f"c {space}", lengths=(("g", "group"),), emit=group_norm, flops=8)


def group_norm(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """Statistics are per sample and group."""
    value, *affine = values
    rest = iter(affine)
    scale, shift = (None if argument is None else next(rest) for argument in row.args[1:3])
    args = (value, scale, shift, *_sizes(value, results[1], row.args[5]), row.args[7])
    return ctx.emit_many("hspmd.group_norm", args, results)


def _sizes(value: AnnotatedValue, statistics: Layout, space: object) -> tuple[object, ...]:
    """Local samples, channels, elements of the space and groups."""
    layout = value.layout
    return local_sizes(layout, 0), local_sizes(layout, 1), space, local_sizes(statistics, 1)


def _group_norm_backward(row: Row, ranks: Ranks) -> OpRule:
    """Gradients of scale and shift are sums over the samples."""
    space = _dims("s", ranks[1], 2)
    value = f"n (g c) {space}"
    text = f"{value}, {value}, n g, n g, (g c) -> {value}, (g c), (g c)"
    more = dict[str, Any](lengths=(("g", "group"),), emit=group_norm_backward, flops=16)
    return parse(row.op, text, sum="n", whole=f"c {space}", **more)


def group_norm_backward(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """Gradients of scale and shift are sums over the samples."""
    grad, value, mean, spread, *scale = values
    sizes = _sizes(value, mean.layout, row.args[7])
    args = (grad, value, mean, spread, scale[0] if scale else None, *sizes, items(row.args[9]))
    each = per_channel(value.layout)
    layouts = (value.layout, each, each)  # those nobody wants too
    return ctx.emit_many("hspmd.group_norm_backward", args, layouts)


def _batch_norm(operands: int, results: str, code: Rule) -> Callable[[Row], OpRule]:
    def variant(row: Row) -> OpRule:
        space = _space(row)
        text = f"n c {space}, {', '.join(['c'] * operands)} -> n c {space}{results}"
        more = dict[str, Any](code=code, flops=8, idle="e" if "e" in results else "")
        return parse(row.op, text, pattern=f"n {space}", **more)

    return variant


def _batch_norm_backward(row: Row, ranks: Ranks) -> OpRule:
    """Sums per channel: pending for scale and shift, over the whole batch within for the input."""
    over = f"n {_dims('s', ranks[1], 2)}"
    value = over.replace("n", "n c", 1)
    text = f"{value}, {value}, c, c, c, e, e -> {value}, c, c"
    more = dict[str, Any](code=batch_norm_backward, flops=12, idle="e")
    return parse(row.op, text, sum=over, pattern=over, whole="e", **more)


put(OpRule("aten.native_layer_norm.default", variants=_layer_norm))
put(OpRule("aten.native_layer_norm_backward.default", variants=_layer_norm_backward))
put(OpRule(GROUP_NORM, variants=_group_norm))
put(OpRule(GROUP_NORM_BACKWARD, by_shapes=by_ranks(_group_norm_backward)))
put(OpRule(BACKWARD, by_shapes=by_ranks(_batch_norm_backward)))
put(OpRule(TRAINING, variants=_batch_norm(4, ", c, c, c, c", batch_norm)))
put(OpRule(WITHOUT_BUFFERS, variants=_batch_norm(2, ", c, c", batch_norm_without_buffers)))
put(OpRule(EVALUATION, variants=_batch_norm(4, ", e, e", batch_norm_in_evaluation)))
