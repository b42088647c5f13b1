"""The table's lines of fused attention: samples and heads are parallel, and queries, beside whole keys.

Queries that ranks cut, as tokens of a hand-written layout, stay cut; keys and values are gathered, and their
gradients are sums over the queries. A causal mask needs to know which queries a rank has. Tokens that
sequence parallelism cuts are gathered, all three alike.
"""

from __future__ import annotations

from ...ir.annotated import AnnotatedValue, PerCoordinate
from ...ir.graph import Row
from ...layout.layout import Axis, Layout, dim_cut
from ...layout.view_maps import flat_factor
from ..call_rule import CallRule, argument_of
from ..cuts import whole_dim
from ..op_apply import Chosen, by_letters, line
from ..op_rule import Dims
from ..rules import Result, RuleContext

FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"
FLASH_BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
SAVED = 6
"""Operands of the backward of attention without the mask."""
QUERIES = 2
"""The dim of the queries in the first result."""
TOKENS = ("s", "t")
"""Letters of queries, and of keys and values."""


def attention(ctx: RuleContext, row: Row) -> Result:
    """As the letters say, without tokens that sequence parallelism cuts."""
    call = ctx.call_rule(row)
    refs = call.refs(row)
    settled = [ctx.settle(value) for value in [ctx.operand(ref) for ref in refs]]
    given = {
        ref.id: _gathered(ctx, value, dims)
        for ref, value, dims in zip(refs, settled, call.operands, strict=True)
    }
    return by_letters(Chosen(ctx, given), row, call)  # type: ignore[arg-type]


def _gathered(ctx: RuleContext, value: AnnotatedValue, dims: Dims) -> AnnotatedValue:
    """Without a cut of tokens that sequence parallelism made: of queries, else of keys."""
    for letter in TOKENS:
        place = next((at for at, names in enumerate(dims) if letter in names), None)
        if place is not None:
            cut = dim_cut(value.layout.dims[place], ranks=True)
            return whole_dim(ctx, value, place) if cut is not None and cut.axis is Axis.SEQUENCE else value
    return value


def forward_rows(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """Batch, heads and queries are parallel; keys and head dim are whole."""
    query, key, value, *mask = values
    literals = (argument_of(row, "dropout_p"), argument_of(row, "is_causal"), row.kwargs.get("scale"))
    args = (query, key, value, mask[0] if mask else None, *literals, *_places(row, results[0]))
    return ctx.emit_many("hspmd.attention", args, results)


def backward_rows(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """As the forward; gradients lie as query, key and value, or are sums over the queries."""
    *given, mask = values if len(values) > SAVED else (*values, None)
    literals = (mask, row.args[SAVED], row.args[SAVED + 1], row.kwargs.get("scale"))
    args = (*given, *literals, *_places(row, results[0]))
    return ctx.emit_many("hspmd.attention_backward", args, results)


def _places(row: Row, queries: Layout) -> tuple[PerCoordinate, ...]:
    """Which queries a rank has in a micro-batch, where a causal mask asks for it: queries may be samples."""
    factor = flat_factor(queries.dims[QUERIES])
    if factor.axis is None or not argument_of(row, "is_causal"):
        return ()
    return (PerCoordinate(factor.held, by_position=factor.axis is Axis.BATCH),)


line(
    FLASH,
    "b h s e, b h t e, b h t v, b h s t -> b h s v, b h s",
    whole="t e v",
    pattern="s",
    heads="h",
    code=attention,
    emit=forward_rows,
    flops=4,
    idle="v",
)
line(
    FLASH_BACKWARD,
    "b h s v, b h s e, b h t e, b h t v, b h s v, b h s, b h s t -> b h s e, b h t e, b h t v",
    whole="t e v",
    pattern="s",
    sum="s",
    leads=4,
    code=attention,
    emit=backward_rows,
    flops=10,
    idle="v",
)
