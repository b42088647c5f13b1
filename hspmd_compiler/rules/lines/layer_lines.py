"""The table's lines of layers and losses: norms and attention; the value declares, code writes."""

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
from ..in_code.group_norm_rules import GROUP_NORM, GROUP_NORM_BACKWARD, group_norm, group_norm_backward
from ..in_code.norm_attention_rules import (
    FLASH,
    FLASH_BACKWARD,
    attention,
    attention_backward,
    layer_norm_backward,
)
from ..op_apply import line, put
from ..op_rule import Linear, OpRule, Ranks, by_ranks, parse
from ..rules import Result, Rule, RuleContext


def _space(row: Row) -> str:
    """Letters of the dims behind samples and channels."""
    shape = (row.outs or ())[0]
    assert shape is not None, "the normalised value is there"
    return " ".join(f"s{place}" for place in range(len(shape[0]) - 2))


def _tail(row: Row, place: int) -> str:
    """Letters of the dims that a layer norm is over."""
    return " ".join(f"l{dim}" for dim in range(len(row.args[place])))  # type: ignore[arg-type]


def _layer_norm(row: Row) -> OpRule:
    tail = _tail(row, 1)
    ones = " ".join("()" for _ in tail.split())
    text = f"... {tail}, {tail}, {tail} -> ... {tail}, ... {ones}, ... {ones}"
    return parse(row.op, text, whole=tail, emit=_emit_layer_norm, flops=8)


def _emit_layer_norm(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    rest = iter(values[1:])
    scale, shift = (None if argument is None else next(rest) for argument in row.args[2:4])
    return ctx.emit_many(row.op, (values[0], row.args[1], scale, shift, *row.args[4:]), results)


def _layer_norm_backward(row: Row) -> OpRule:
    tail = _tail(row, 2)
    ones = " ".join("()" for _ in tail.split())
    text = f"... {tail}, ... {tail}, ... {ones}, ... {ones}, {tail}, {tail} -> ... {tail}, {tail}, {tail}"
    more = dict[str, Any](linear=Linear.FIRST, emit=layer_norm_backward, copied=(2, 3), flops=16)
    return parse(row.op, text, whole=tail, sum="...", **more)


def _group_norm(row: Row) -> OpRule:
    space = _space(row)
    text = f"n (g c) {space}, (g c), (g c) -> n (g c) {space}, n g, n g"
    return parse(row.op, text, whole=f"c {space}", lengths=(("g", "group"),), emit=group_norm, flops=8)


def _group_norm_backward(row: Row, ranks: Ranks) -> OpRule:
    """Gradients of scale and shift are sums over the samples."""
    space = _dims("s", ranks[1], 2)
    value = f"n (g c) {space}"
    text = f"{value}, {value}, n g, n g, (g c) -> {value}, (g c), (g c)"
    more = dict[str, Any](lengths=(("g", "group"),), emit=group_norm_backward, flops=16)
    return parse(row.op, text, sum="n", whole=f"c {space}", **more)


def _dims(letter: str, rank: int | None, less: int) -> str:
    """Letters of an operand's dims, but for the first ones."""
    return " ".join(f"{letter}{place}" for place in range((rank or 0) - less))


def _batch_norm(operands: int, results: str, code: Rule) -> Callable[[Row], OpRule]:
    def variant(row: Row) -> OpRule:
        space = _space(row)
        text = f"n c {space}, {', '.join(['c'] * operands)} -> n c {space}{results}"
        return parse(row.op, text, pattern=f"n {space}", code=code, flops=8)

    return variant


def _batch_norm_backward(row: Row, ranks: Ranks) -> OpRule:
    """Sums per channel: pending for scale and shift, over the whole batch within for the input."""
    over = f"n {_dims('s', ranks[1], 2)}"
    value = over.replace("n", "n c", 1)
    text = f"{value}, {value}, c, c, c, e, e -> {value}, c, c"
    return parse(row.op, text, sum=over, pattern=over, whole="e", code=batch_norm_backward, flops=12)


put(OpRule("aten.native_layer_norm.default", variants=_layer_norm))
put(OpRule("aten.native_layer_norm_backward.default", variants=_layer_norm_backward))
put(OpRule(GROUP_NORM, variants=_group_norm))
put(OpRule(GROUP_NORM_BACKWARD, by_shapes=by_ranks(_group_norm_backward)))
put(OpRule(BACKWARD, by_shapes=by_ranks(_batch_norm_backward)))
put(OpRule(TRAINING, variants=_batch_norm(4, ", c, c, c, c", batch_norm)))
put(OpRule(WITHOUT_BUFFERS, variants=_batch_norm(2, ", c, c", batch_norm_without_buffers)))
put(OpRule(EVALUATION, variants=_batch_norm(4, ", e, e", batch_norm_in_evaluation)))

line(
    FLASH,
    "b h s e, b h t e, b h t v, b h s t -> b h s v, b h s",
    whole="s t e v",
    heads="h",
    emit=attention,
    flops=4,
    idle="v",
)
line(
    FLASH_BACKWARD,
    "b h s v, b h s e, b h t e, b h t v, b h s v, b h s, b h s t -> b h s e, b h t e, b h t v",
    whole="s t e v",
    leads=4,
    emit=attention_backward,
    flops=10,
    idle="v",
)
