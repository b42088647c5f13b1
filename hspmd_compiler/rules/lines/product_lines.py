"""The table's lines of products: matrices, vectors, distances."""

from __future__ import annotations

from ..op_apply import line
from ..op_rule import Linear

line("aten.mm.default", "m k, k n -> m n", sum="k", linear=Linear.EACH, flops=2, empty_ok=True)
line("aten.bmm.default", "b m k, b k n -> b m n", sum="k", linear=Linear.EACH, flops=2, empty_ok=True)
line(
    "aten.addmm.default", "m n, m k, k n -> m n", sum="k", linear=Linear.EACH, flops=2, added=0, empty_ok=True
)
line("aten.mv.default", "m k, k -> m", sum="k", flops=2)
line("aten.dot.default", "k, k -> ", sum="k", flops=2)
line("aten.vdot.default", "k, k -> ", sum="k", flops=2)

# Between all pairs of points: PyTorch computes few points in another way than many.
line("aten._cdist_forward.default", "... p d, ... r d -> ... p r", whole="p r d", flops=3)
line("aten._cdist_backward.default", "... p r, ... p d, ... r d, ... p r -> ... p d", whole="p r d", flops=3)
