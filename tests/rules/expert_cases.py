"""How products of rows and their experts' matrices are called, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator

from hspmd_compiler.ir.graph import Ref
from hspmd_compiler.ir.own_names import EXPERT_GRAD, EXPERT_MM
from hspmd_compiler.verify.rules.split_operands import Operand
from hspmd_compiler.verify.rules.split_operator import OperandSketch

from .rule_cases import B, Case, Take, below, normal

EXPERTS, INNER, OUTER = 7, 6, 5
ROWS = Operand((B, INNER), normal)
GRAD = Operand((B, OUTER), normal)
WEIGHTS = Operand((EXPERTS, INNER, OUTER), normal, sample=None)
CHOSEN = Operand((B,), below(EXPERTS), linear=False)
NONE_TOO = Operand((B,), below(EXPERTS, ignore=True), linear=False)
SAME = Operand((B,), below(1), linear=False)
"""All rows go to the first expert."""


def experts() -> Iterator[Case]:
    """Rows of any experts, rows without one, and rows of one expert alone."""
    for chosen in (CHOSEN, NONE_TOO, SAME):
        yield Case(EXPERT_MM, lambda s, take, c=chosen: _forward(s, take, c))  # type: ignore[misc]
        yield Case(EXPERT_GRAD, lambda s, take, c=chosen: _backward(s, take, c))  # type: ignore[misc]


def _forward(s: OperandSketch, take: Take, chosen: Operand) -> Ref:
    return s.call(EXPERT_MM, (take(ROWS), take(WEIGHTS), take(chosen)))


def _backward(s: OperandSketch, take: Take, chosen: Operand) -> Ref:
    return s.call(EXPERT_GRAD, (take(ROWS), take(GRAD), take(chosen), take(WEIGHTS)))
