"""The table's lines of products of each row with the matrix of its own expert."""

from __future__ import annotations

from ...ir.own_names import EXPERT_GRAD, EXPERT_MM
from ..in_code.expert_rules import expert_grad, expert_mm
from ..op_apply import line

line(EXPERT_MM, "s k, e k n, s -> s n", sum="k e", code=expert_mm, flops=2, idle="e")
line(EXPERT_GRAD, "s k, s n, s, e k n -> e k n", sum="s", code=expert_grad, flops=2, idle="e")
