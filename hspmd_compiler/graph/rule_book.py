"""All rules of the package, registered by importing this."""

from __future__ import annotations

from . import (  # noqa: F401  (rules register on import)
    along_lines,
    batch_norm_rules,
    comm_rules,
    constant_lines,
    contraction_rules,
    convolution_rules,
    group_norm_rules,
    image_rules,
    index_put_rules,
    layer_lines,
    lookup_rules,
    loss_rules,
    matrix_lines,
    norm_attention_rules,
    pointwise_lines,
    pointwise_rules,
    product_lines,
    reduction_rules,
    scatter_rules,
    slice_lines,
    space_lines,
    variance_rules,
    view_lines,
    window_lines,
)
from .rules import RULES, rule_for

__all__ = ["RULES", "rule_for"]
