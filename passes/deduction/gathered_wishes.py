"""Tells where a layout that was asked for ends at the next operator, which gathers it on every rank.

Numbers are right then, and ranks compute the same twice: which operator does it, where and why is said once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from ...annotations.of_layout import layout_states
from ...base.log import logger
from ...ir.annotated import AnnotatedValue, PipelineGraph
from ...ir.graph import LogicalGraph, OriginKind, Phase, Row, row_inputs
from ...ir.own_names import COMM, anchor_name, is_marker
from ...layout.layout import Coordinate, Layout
from ...layout.several_cuts import is_plain, rank_cuts
from ...rules.call_rule import CallRule
from ...rules.op_apply import MOVED
from ...rules.op_rule import OP_RULES

if TYPE_CHECKING:
    from .deducer import Deducer


def note_gathered(deducer: Deducer, value: AnnotatedValue, target: Layout, stage: int) -> None:
    """Note a conversion, if it gathers a value straight behind the marker that split it."""
    wish = deducer.made.get(value.id)
    if wish is None or wish.op != COMM or wish.out.logical is None or deducer.phase is not Phase.FORWARD:
        return
    ranks, crosses = deducer.pipeline.stages[value.stage].tp, stage != value.stage
    if (deducer.pipeline.stages[stage].tp == 1) if crosses else is_marker(deducer.row.op):
        return  # nobody computes the same, or the next marker asks for it
    if _held(deducer, target, stage) <= _held(deducer, value.layout, value.stage):
        return
    states = str(layout_states(value.layout, ranks))
    why = _crossing(deducer, value, stage) if crosses else _reason(deducer, value)
    deducer.result.gathered_wishes[wish.out.logical, deducer.row.id] = f"{states} {why}"


def _held(deducer: Deducer, layout: Layout, stage: int) -> float:
    """Elements on a rank of a stage in the mean, of the pipeline's first micro-batch."""
    ranks, batch = deducer.pipeline.stages[stage].tp, deducer.micro_batches[0]
    return sum(prod(layout.local_shape(Coordinate(rank, batch))) for rank in range(ranks)) / ranks


def _crossing(deducer: Deducer, value: AnnotatedValue, stage: int) -> str:
    home, other = (deducer.pipeline.stages[at].tp for at in (value.stage, stage))
    return f"goes from a stage of {home} devices to one of {other}: put a marker there, too"


def _reason(deducer: Deducer, value: AnnotatedValue) -> str:
    """Why the running row can't take the value as it lies, and what helps."""
    row = deducer.row
    if not is_plain(value.layout):
        return "cuts several dims, and an operator takes one cut: ask for one"
    if row.op not in OP_RULES:
        return "meets an operator without a rule: write one with hspmd_compiler.rule"
    call = deducer.call_rule(row)
    operands = [deducer.values.get((ref.id, deducer.stage)) for ref in call.refs(row)]
    own = next((i for i, found in enumerate(operands) if _is_of(found, value)), None)
    if own is None:
        return "is a layout that its rule does not take"
    cut = _cut_letters(call, own, operands[own])
    if not cut.isdisjoint(call.whole | call.pattern):
        return f"cuts a dim that it needs whole{f', for {call.rule.why}' if call.rule.why else ''}"
    places = sorted(range(len(operands)), key=lambda place: place == call.rule.added)
    other = next((i for i in places if not cut >= _cut_letters(call, i, operands[i])), None)
    if other is None:
        return "is a layout that its rule does not take"
    return f"meets {_name(deducer, row, call, other)}, and ranks cut one dim of both together"


def _is_of(found: object, value: AnnotatedValue) -> bool:
    """Whether it is the value, or a view of it."""
    while isinstance(found, AnnotatedValue):
        if found is value:
            return True
        found = None if found.via is None else found.via[1]
    return False


def _cut_letters(call: CallRule, place: int, value: object) -> frozenset[str]:
    if not isinstance(value, AnnotatedValue) or place >= len(call.operands):
        return frozenset()
    dims = call.operands[place]
    return frozenset(name for dim, _ in rank_cuts(value.layout) for name in dims[dim])


def _name(deducer: Deducer, row: Row, call: CallRule, place: int) -> str:
    """Another operand that ranks cut, in words; a parameter by its name, with what keeps it whole."""
    found = deducer.graph.rows[call.refs(row)[place].id]
    while found.op in MOVED:
        found = deducer.graph.rows[row_inputs(found)[0]]
    if found.op != "placeholder" or found.origin.kind is not OriginKind.PARAM:
        return f"another operand, of {found.op}, that is split otherwise"
    return f"the split parameter {found.origin.name} (an override with duplicate: true keeps it whole)"


def warn_of_gathered(graph: LogicalGraph, pipelines: Sequence[PipelineGraph]) -> None:
    """A warning for each kind of place: the first operator, and how many others are like it."""
    places: dict[tuple[str, str, str], tuple[int, int]] = {}
    for pipeline in pipelines:
        for (wish, row), why in pipeline.gathered_wishes.items():
            key = (graph.rows[wish].where, graph.rows[row].op, why)
            places.setdefault(key, (wish, row))
    for (_, _, why), (wish, row) in places.items():
        logger.warning("%s", warning(graph.rows[wish], graph.rows[row], why))


def warning(wish: Row, row: Row, why: str) -> str:
    """The text for one place."""
    name = anchor_name(wish)
    asked = wish.where if name is None else f"{wish.args[3]} of the strategy, at {name}"
    return (
        f"a layout that was asked for is gathered at once by {row.op}, so that ranks compute the same:"
        f" {why}; asked for at {asked}; gathered at {row.where}"
    )
