"""All rules of the package, registered by importing this."""

from __future__ import annotations

from . import (  # noqa: F401  (rules register on import)
    along_lines,
    comm_rules,
    constant_lines,
    contraction_rules,
    convolution_lines,
    convolution_rules,
    group_norm_rules,
    index_lines,
    index_put_rules,
    layer_lines,
    lookup_rules,
    loss_lines,
    matrix_lines,
    pointwise_lines,
    pointwise_rules,
    product_lines,
    random_rules,
    reduction_rules,
    scatter_rules,
    slice_lines,
    slice_rules,
    space_lines,
    variance_rules,
    view_lines,
    view_rules,
    window_lines,
)
from .rules import RULES, rule_for

__all__ = ["RULES", "rule_for"]
