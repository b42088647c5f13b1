"""All rules of the package, registered by importing this."""

from __future__ import annotations

from .in_code import (  # noqa: F401  (rules register on import)
    comm_rules,
    contraction_rules,
    convolution_rules,
    group_norm_rules,
    index_put_rules,
    lookup_rules,
    pointwise_rules,
    random_rules,
    reduction_rules,
    scatter_rules,
    slice_rules,
    variance_rules,
    view_rules,
)
from .lines import (  # noqa: F401  (rules register on import)
    along_lines,
    constant_lines,
    convolution_lines,
    index_lines,
    layer_lines,
    loss_lines,
    matrix_lines,
    pointwise_lines,
    product_lines,
    slice_lines,
    space_lines,
    view_lines,
    window_lines,
)
from .rules import RULES, rule_for

__all__ = ["RULES", "rule_for"]
