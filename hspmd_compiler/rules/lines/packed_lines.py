"""The table's lines of attention inside documents of packed rows: parallel over samples and heads."""

from __future__ import annotations

from ...ir.annotated import AnnotatedValue, PerCoordinate
from ...ir.graph import Row
from ...ir.own_names import PACKED, PACKED_BACKWARD
from ...layout.intervals import Intervals
from ...layout.layout import Layout
from ...layout.view_maps import flat_factor
from ...program.sized.documents import STARTS
from ..call_rule import CallRule
from ..op_apply import line
from ..rules import Result, RuleContext, integer

HEADS = 1
"""The dim of the heads."""
LITERALS = 4
"""Arguments behind the tensors: causal, window, scale, repeat."""


def packed_rows(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """Forward or backward in local heads; where documents begin is found once, on the host."""
    import torch  # late: prices read rules without

    *tensors, positions = values
    causal, window, scale, repeat = row.args[-LITERALS:]
    starts = ctx.emit(STARTS, (positions,), positions.layout, dtype=torch.int64)
    kernel = row.op.removesuffix(".default")
    alike = _alike(results[0], integer(repeat))
    return ctx.emit_many(kernel, (*tensors, starts, causal, window, scale, alike), results)


def _alike(queries: Layout, repeat: int) -> object:
    """How many of a rank's heads, one after the other, have the same keys and values."""
    if repeat == 1:
        return ()
    factor = flat_factor(queries.dims[HEADS])
    if factor.axis is None:
        return (repeat,) * (factor.size // repeat)
    return PerCoordinate(lambda at: _runs(factor.held(at), repeat))


def _runs(heads: Intervals, repeat: int) -> tuple[int, ...]:
    """Of heads, counted over all ranks, how many belong to each group that has one of them."""
    groups: dict[int, int] = {}
    for low, high in heads:
        for head in range(low, high):
            groups[head // repeat] = groups.get(head // repeat, 0) + 1
    return tuple(groups.values())


line(
    PACKED,
    "b h s e, b h t e, b h t v, b t -> b h s v, b h s",
    whole="s t e v",
    heads="h",
    emit=packed_rows,
    flops=4,
    idle="v",
)
line(
    PACKED_BACKWARD,
    "b h s v, b h s e, b h t e, b h t v, b h s v, b h s, b t -> b h s e, b h t e, b h t v",
    whole="s t e v",
    heads="h",
    emit=packed_rows,
    flops=10,
    idle="v",
)
