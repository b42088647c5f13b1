"""Where values may move: what is made by, or read by, an operator that is worth an exchange.

Moves behind every row would make the space many times larger, for programs that are hardly better: a value
that only views, scalings and activations take further is moved before them, or behind them. What is computed
of parameters alone moves everywhere, for little: beside samples that are cut it is whole, with a pending
gradient, which few operators pass on. A parameter that is only moved or cast is held in one way.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ...cost_models.operator_classes import OperatorClass, class_of
from ...ir.graph import Row
from ...ir.own_names import ANCHOR
from ...program.operator_names import torch_operator
from .cuts import is_identity

if TYPE_CHECKING:
    from .forward_rows import ForwardWalk

ADD = "aten.add.Tensor"
PRODUCTS = frozenset({OperatorClass.MATMUL, OperatorClass.ATTENTION})
MAKERS = PRODUCTS | {OperatorClass.NORM}
ALSO = frozenset({"aten.embedding.default", "aten._adaptive_avg_pool2d.default", "aten.relu.default"})
"""Others whose results may move."""
SAME_VALUE = frozenset(
    {
        "aten._unsafe_view.default",
        "aten.reshape.default",
        "getitem",
        "aten.clone.default",
        "aten._to_copy.default",
    }
)


@cache
def is_view(op: str) -> bool:
    """Whether an operator shows its first operand's memory."""
    if op.startswith("aten."):
        operator = torch_operator(op)
        returns: list[Any] = [] if operator is None else list(operator._schema.returns)
        aliases = [one.alias_info for one in returns[:1] if one.alias_info is not None]
        return any(not one.is_write for one in aliases)
    return op == "getitem" or is_identity(op)


def moves(walk: ForwardWalk, row: Row) -> bool:
    """Whether the result of a row may move: of an anchor, or, in a graph that has none, of any row."""
    if walk.anchored:
        if row.op != ANCHOR:
            return False
        made_by = maker(walk, walk.facts.facts.operands[row.id][0])
        return made_by.op not in (ANCHOR, "placeholder") and _is_worth(walk, made_by, row.id)
    return not _shows(row.op) and _is_worth(walk, row, row.id)


def _shows(op: str) -> bool:
    return op != ANCHOR and (op in SAME_VALUE or is_view(op))


def maker(walk: ForwardWalk, value: int) -> Row:
    """The row whose elements views show."""
    row = walk.graph.rows[value]
    while _shows(row.op) and walk.facts.facts.operands[row.id]:
        row = walk.graph.rows[walk.facts.facts.operands[row.id][0]]
    return row


def _is_worth(walk: ForwardWalk, made_by: Row, value: int) -> bool:
    if class_of(made_by.op) in MAKERS or made_by.op in ALSO or walk.facts.facts.kinds.static[value]:
        return True
    readers = _readers(walk, value)
    if any(class_of(op) in PRODUCTS for op in readers):
        return True
    return made_by.op == ADD and (len(readers) > 1 or any(class_of(op) in MAKERS for op in readers))


def _readers(walk: ForwardWalk, value: int) -> list[str]:
    """Operators that read a value, directly or through views."""
    found: list[str] = []
    stack = list(walk.readers.get(value, ()))
    while stack:
        reader = stack.pop()
        op = walk.graph.rows[reader].op
        if _shows(op):
            stack += walk.readers.get(reader, ())
        else:
            found.append(op)
    return found
