"""All rules of the package, registered by importing this."""

from __future__ import annotations

from . import (  # noqa: F401  (rules register on import)
    batch_norm_rules,
    comm_rules,
    constant_rules,
    contraction_rules,
    convolution_rules,
    group_norm_rules,
    image_rules,
    index_bounds,
    index_put_rules,
    letter_rules,
    lookup_rules,
    loss_rules,
    norm_attention_rules,
    pointwise_rules,
    random_rules,
    reduction_rules,
    scatter_rules,
    slice_rules,
    variance_rules,
    view_rules,
    window_rules,
)
from .rules import RULES, rule_for

__all__ = ["RULES", "rule_for"]
