"""The table's lines of losses: of elements, and over classes, which may be cut by a pattern."""

from __future__ import annotations

from typing import Any

from ...ir.graph import Row
from ..call_rule import argument_of
from ..in_code.loss_rules import NLL, NLL_BACKWARD, log_softmax, log_softmax_backward, nll_backward, nll_loss
from ..in_code.reduction_rules import MEAN, SUM
from ..op_apply import line, put
from ..op_rule import Along, Kind, Mean, OpRule, Ranks, by_ranks, parse

_LOSSES = """
    mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss
"""
ELEMENT_LOSSES = tuple(f"aten.{name}.default" for name in _LOSSES.split())
_GRADS = "mse_loss smooth_l1_loss huber_loss binary_cross_entropy soft_margin_loss"
ELEMENT_LOSS_GRADS = tuple(f"aten.{name}_backward.default" for name in _GRADS.split())


def _each(row: Row) -> bool:
    """Whether losses stay apart: not summed, nor averaged."""
    return argument_of(row, "reduction") not in (MEAN, SUM)


def _loss(row: Row) -> OpRule:
    """Of each element, or summed, or averaged."""
    text, over = ("... -> ...", "") if _each(row) else ("... -> ", "...")
    return parse(row.op, text, sum=over, splits_sums=True, **_AS_LOSS)


_AS_LOSS = dict[str, Any](every=True, scale=Mean(argument="reduction"), empty_ok=True)
for _op in ELEMENT_LOSSES:
    put(OpRule(_op, variants=_loss))
for _op in ELEMENT_LOSS_GRADS:
    line(_op, "... -> ...", **_AS_LOSS)


def _nll(row: Row, ranks: Ranks) -> OpRule:
    """Classes are picked where they live; counts are of the whole batch."""
    samples, each = _samples(ranks[0]), _each(row)
    text = f"{samples} c, {samples}, c -> {samples if each else ''}, "
    over = {"whole": "c", "sum": samples} if each else {"pattern": f"{samples} c"}
    return parse(row.op, text, code=nll_loss, **over)


def _nll_backward(row: Row, ranks: Ranks) -> OpRule:
    samples, each = _samples(ranks[1]), _each(row)
    text = f"{samples if each else ''}, {samples} c, {samples}, c, -> {samples} c"
    return parse(row.op, text, code=nll_backward, **({"whole": "c"} if each else {}))


def _samples(rank: int | None) -> str:
    """A loss is of one sample, or of several."""
    return "n" if rank == 2 else ""


_OVER = dict[str, Any](along=Along("dim"), along_kind=Kind.PATTERN)
line("aten._log_softmax.default", "... -> ...", code=log_softmax, **_OVER)
line("aten._log_softmax_backward_data.default", "..., ... -> ...", code=log_softmax_backward, **_OVER)
put(OpRule(NLL, by_shapes=by_ranks(_nll)))
put(OpRule(NLL_BACKWARD, by_shapes=by_ranks(_nll_backward)))
