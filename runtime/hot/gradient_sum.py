"""Gradients of the parts of a step, added up."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...program.literals import torch_dtype

WIDE = {"bfloat16": "float32", "float16": "float32"}
"""The types that gradients are added in, where they are summed over ranks in a narrow one."""
_WIDE = {torch_dtype(narrow): torch_dtype(wide) for narrow, wide in WIDE.items()}


class GradientSum:
    """A weighted sum of synchronised gradients of one rank, by parameter, in memory of its own."""

    def __init__(self) -> None:
        self.total: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, synced: Mapping[str, Tensor], weight: float = 1.0) -> None:
        """Add weight times these; they stay as they are: two parameters may share one."""
        new = [name for name in synced if name not in self.total]
        held = [name for name in synced if name in self.total]
        if held:
            grads = [synced[name] for name in held]
            torch._foreach_add_([self.total[name] for name in held], grads, alpha=weight)
        if new:
            grads = [synced[name].to(_WIDE.get(synced[name].dtype, synced[name].dtype)) for name in new]
            scaled = torch._foreach_mul(grads, weight)
            self.total.update(zip(new, scaled, strict=True))
