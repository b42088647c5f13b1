"""Type inference over dims: walks the forward rows once and says what every dim is made of."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.graph import LogicalGraph, OriginKind, Phase, Row, row_inputs
from ...ir.own_names import ANCHOR
from ...rules.lines.slice_lines import CUTS_AND_JOINS
from ...rules.lines.view_lines import VIEWS_AND_COPIES
from ...rules.op_apply import MOVED
from ...rules.op_rule import OP_RULES
from ...rules.unknown_operators import Treatment, treatment
from ..deduction.placement import GraphFacts
from .dim_flow import DimFlow, Dims, Rule
from .dim_math_rules import BY_HAND, pointwise, whole
from .dim_op_rules import by_value

_KEEP_IDS = MOVED.union(VIEWS_AND_COPIES, CUTS_AND_JOINS) | {
    "getitem",
    ANCHOR,
    "aten._to_copy.default",
    "aten.where.self",
    "aten.clamp.default",
    "aten.masked_fill.Scalar",
    "aten.masked_fill.Tensor",
    "aten.copy.default",
    "aten.select_scatter.default",
    "aten.slice_scatter.default",
}


def infer_dims(graph: LogicalGraph, facts: GraphFacts | None = None) -> DimFlow:
    """The dims of every forward row that depends on a parameter's dims. facts: of the graph, if known."""
    known = GraphFacts.of(graph) if facts is None else facts
    flow = DimFlow(graph.rows, known.calls)
    for row in graph.rows:
        if row.phase is not Phase.FORWARD:
            continue
        if row.op == "placeholder":
            _visit_source(flow, row)
        elif row.op != "output":
            _visit(flow, row, known.operands[row.id])
    _settle_classes(flow)
    return flow


def _visit_source(flow: DimFlow, row: Row) -> None:
    if row.origin.kind is OriginKind.PARAM:
        flow.store(row, tuple(flow.terms.atom(size) for size in row.shape or ()))
    elif row.origin.kind is OriginKind.INPUT:
        flow.data.add(row.id)
        flow.ids.add(row.id)


def _visit(flow: DimFlow, row: Row, sources: Sequence[int]) -> None:
    flow.terms.row = row.id
    if not flow.data.isdisjoint(sources):
        flow.data.add(row.id)
    if row.op in _KEEP_IDS and not flow.ids.isdisjoint(sources):
        flow.ids.add(row.id)
    if any(source in flow.dims or source in flow.outs for source in sources):
        flow.store(row, _rule_of(row)(flow, row))


def _rule_of(row: Row) -> Rule:
    """What is said by hand goes before the line of letters."""
    if row.op == ANCHOR:
        return _same
    found = BY_HAND.get(row.op)
    if found is not None:
        return found
    if row.op in OP_RULES:
        return by_value
    return pointwise if treatment(row) is Treatment.POINTWISE else whole


def _same(flow: DimFlow, row: Row) -> Dims | None:
    """What an anchor stands behind."""
    return flow.dims.get(row_inputs(row)[0])


def _settle_classes(flow: DimFlow) -> None:
    """Classes of a loss are split by a pattern; those of any other log-softmax stay whole."""
    terms = flow.terms
    for row, (classes, result) in flow.classes.items():
        if row in flow.losses and list(terms.atoms(result)) == [result] and not terms.facts(result).whole:
            terms.mark_vocab(classes)
        else:
            terms.row = row
            terms.mark_whole(classes, "a softmax is over it")
