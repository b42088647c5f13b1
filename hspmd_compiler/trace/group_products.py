"""PyTorch's product of groups of rows, as of experts, is traced as this package's own."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from ..ir.own_operators import grouped_product

THREE = 3


def own_group_products() -> AbstractContextManager[object]:
    """Inside, groups of rows times a matrix for each are one operator, for all types and alignments.

    Its derivative in PyTorch is another form of the same operator, which needs rows in multiples of 16 bytes.
    """
    before: Any = torch._grouped_mm

    def product(rows: Tensor, weights: Tensor, *args: Any, **given: Any) -> Tensor:
        offs = args[0] if args else given.get("offs")
        plain = rows.dim() == 2 and weights.dim() == THREE and len(args) <= 1
        others = [name for name, value in given.items() if name != "offs" and value is not None]
        if not plain or others or not isinstance(offs, Tensor):
            made: Tensor = before(rows, weights, *args, **given)
            return made
        own: Tensor = grouped_product(rows, weights, offs)
        return own

    return patch.object(torch, "_grouped_mm", product)
