"""All rules of the package, registered by importing this."""

from __future__ import annotations

from .in_code import anchor_rules, comm_rules  # noqa: F401  (rules register on import)
from .lines import (  # noqa: F401  (rules register on import)
    along_lines,
    attention_lines,
    constant_lines,
    convolution_lines,
    expert_lines,
    index_lines,
    layer_lines,
    loss_lines,
    matrix_lines,
    packed_lines,
    pointwise_lines,
    slice_lines,
    space_lines,
    view_lines,
    window_lines,
)
from .rules import RULES, rule_for

__all__ = ["RULES", "rule_for"]
