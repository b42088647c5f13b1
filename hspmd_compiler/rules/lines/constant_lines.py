"""The table's lines of values made from nothing: any cut, each rank makes the elements that it uses."""

from __future__ import annotations

from ...ir.graph import Row
from ...ir.random_operator import RANDOM_MASK, RANDOM_NUMBERS
from ...layout.layout import whole
from ..in_code.constant_rules import COUNTERS, FILLS, counter, fill
from ..in_code.random_rules import by_position
from ..op_apply import put
from ..op_rule import OpRule, Shapes, chosen, lengths_of, numbered
from ..rules import Pull, Result, RuleContext, chosen_layout, pull_for


def _any_cut(row: Row, _shapes: Shapes) -> OpRule:
    """Letters of the result alone; of tensors among the arguments no element is read."""
    letters = numbered(len(row.shape or ()))
    return chosen(row, [], [letters], lengths=lengths_of(letters, row.shape or ()))


def _source(op: str, made: Pull) -> None:
    """An operator whose result is made whole unless a planner chose a cut. made: in a cut."""

    def code(ctx: RuleContext, row: Row) -> Result:
        value = made(ctx, row, chosen_layout(ctx, row) or whole(row.shape or ()))
        assert value is not None, "only a cut of samples is refused"
        return value

    put(OpRule(op, by_shapes=_any_cut, code=code, flops=0, says="any cut: made where it is used"))


for _op in FILLS:
    _source(_op, fill)
for _op in (RANDOM_MASK, RANDOM_NUMBERS):
    _source(_op, by_position)
for _op in COUNTERS:
    _source(_op, counter)
pull_for(*FILLS)(fill)
pull_for(RANDOM_MASK, RANDOM_NUMBERS)(by_position)
