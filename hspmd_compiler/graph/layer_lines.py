"""The table's lines of layers and losses: norms, attention, lookups; the value declares, code writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..annotations.layout import Layout
from .annotated import AnnotatedValue
from .batch_norm_rules import (
    EVALUATION,
    TRAINING,
    WITHOUT_BUFFERS,
    batch_norm,
    batch_norm_in_evaluation,
    batch_norm_without_buffers,
)
from .call_rule import CallRule
from .group_norm_rules import GROUP_NORM, group_norm
from .ir import Row
from .lookup_rules import EMBEDDING, embedding
from .loss_rules import log_softmax
from .norm_attention_rules import FLASH, FLASH_BACKWARD, attention, attention_backward, layer_norm_backward
from .op_apply import line, put
from .op_rule import Along, Kind, Linear, OpRule, parse
from .rules import Result, Rule, RuleContext


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
    more = dict[str, Any](linear=Linear.FIRST, code=layer_norm_backward, dense=(2, 3), flops=16)
    return parse(row.op, text, whole=tail, sum="...", **more)


def _group_norm(row: Row) -> OpRule:
    space = _space(row)
    text = f"n (g c) {space}, (g c), (g c) -> n (g c) {space}, n g, n g"
    return parse(row.op, text, whole=f"c {space}", lengths=(("g", "group"),), code=group_norm, flops=8)


def _batch_norm(operands: int, results: str, code: Rule) -> Callable[[Row], OpRule]:
    def variant(row: Row) -> OpRule:
        space = _space(row)
        text = f"n c {space}, {', '.join(['c'] * operands)} -> n c {space}{results}"
        return parse(row.op, text, pattern=f"n {space}", code=code, flops=8)

    return variant


put(OpRule("aten.native_layer_norm.default", variants=_layer_norm))
put(OpRule("aten.native_layer_norm_backward.default", variants=_layer_norm_backward))
put(OpRule(GROUP_NORM, variants=_group_norm))
put(OpRule(TRAINING, variants=_batch_norm(4, ", c, c, c, c", batch_norm)))
put(OpRule(WITHOUT_BUFFERS, variants=_batch_norm(2, ", c, c", batch_norm_without_buffers)))
put(OpRule(EVALUATION, variants=_batch_norm(4, ", e, e", batch_norm_in_evaluation)))

line(EMBEDDING, "v d, ... -> ... d", sum="v", code=embedding, flops=0)
line("aten._log_softmax.default", "... -> ...", along=Along("dim"), along_kind=Kind.PATTERN, code=log_softmax)
line(
    FLASH,
    "b h s e, b h t e, b h t v, b h s t -> b h s v, b h s",
    whole="s t e v",
    heads="h",
    code=attention,
    flops=4,
    idle="v",
)
line(
    FLASH_BACKWARD,
    "b h s v, b h s e, b h t e, b h t v, b h s v, b h s, b h s t -> b h s e, b h t e, b h t v",
    whole="s t e v",
    code=attention_backward,
    flops=10,
    idle="v",
)
