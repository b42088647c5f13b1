"""Type inference over dims: walks the forward rows once and says what every dim is made of."""

from __future__ import annotations

from functools import cache

import torch

from ..graph.ir import LogicalGraph, OriginKind, Phase, Row, row_inputs
from ..graph.letters import LETTERS
from ..graph.pointwise_operators import LAZY, LINEAR, PRODUCTS, SETTLING, SUMS
from .dim_along_rules import ALONG_RULES
from .dim_flow import DimFlow, Rule
from .dim_image_rules import IMAGE_RULES
from .dim_layout_rules import LAYOUT_RULES
from .dim_letters import letters
from .dim_math_rules import MATH_RULES, pointwise, whole

_RULES: dict[str, Rule] = {**ALONG_RULES, **LAYOUT_RULES, **MATH_RULES, **IMAGE_RULES}
_POINTWISE = frozenset((*LAZY, *LINEAR, *PRODUCTS, *SETTLING, *SUMS))
_KEEP_IDS = frozenset(LAYOUT_RULES) | {
    "aten.clone.default",
    "aten.where.self",
    "aten.clamp.default",
    "aten.masked_fill.Scalar",
    "aten.masked_fill.Tensor",
    "aten.copy.default",
    "aten.lift_fresh_copy.default",
    "aten.select_scatter.default",
    "aten.slice_scatter.default",
}


def infer_dims(graph: LogicalGraph) -> DimFlow:
    """The dims of every forward row that depends on a parameter's dims."""
    flow = DimFlow(graph.rows)
    for row in graph.rows:
        if row.phase is not Phase.FORWARD:
            continue
        if row.op == "placeholder":
            _visit_source(flow, row)
        elif row.op != "output":
            _visit(flow, row)
    _settle_classes(flow)
    return flow


def _visit_source(flow: DimFlow, row: Row) -> None:
    if row.origin.kind is OriginKind.PARAM:
        flow.store(row, tuple(flow.terms.atom(size) for size in row.shape or ()))
    elif row.origin.kind is OriginKind.INPUT:
        flow.data.add(row.id)
        flow.ids.add(row.id)


def _visit(flow: DimFlow, row: Row) -> None:
    flow.terms.row = row.id
    sources = row_inputs(row)
    if not flow.data.isdisjoint(sources):
        flow.data.add(row.id)
    if row.op in _KEEP_IDS and not flow.ids.isdisjoint(sources):
        flow.ids.add(row.id)
    if any(source in flow.dims or source in flow.outs for source in sources):
        flow.store(row, (letters if row.op in LETTERS else _rule_of(row.op))(flow, row))


@cache
def _rule_of(op: str) -> Rule:
    return _RULES.get(op) or (pointwise if _is_pointwise(op) else whole)


def _is_pointwise(op: str) -> bool:
    if op in _POINTWISE:
        return True
    target: object = torch.ops
    for name in op.split("."):
        target = getattr(target, name, None)
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags


def _settle_classes(flow: DimFlow) -> None:
    """Classes of a loss are split by a pattern; those of any other log-softmax stay whole."""
    terms = flow.terms
    for row, (classes, result) in flow.classes.items():
        if row in flow.losses and list(terms.atoms(result)) == [result] and not terms.facts(result).whole:
            terms.mark_vocab(classes)
        else:
            terms.row = row
            terms.mark_whole(classes, "a softmax is over it")
