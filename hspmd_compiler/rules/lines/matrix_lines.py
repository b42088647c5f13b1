"""The table's lines of functions of matrices, with the last two dims whole, and of products and distances."""

from __future__ import annotations

from ..op_apply import line
from ..op_rule import Linear

OF_MATRICES = {
    "linalg_matrix_exp": "... m n -> ... m n",
    "linalg_qr": "... m n -> ... m k, ... k n",
    "_linalg_svd": "... m n -> ... m k, ... k, ... l n",
    "_linalg_eigh": "... m n -> ... m, ... m n",
    "_linalg_slogdet": "... m n -> ..., ..., ... m n, ... m",
    "_linalg_det": "... m n -> ..., ... m n, ... m",
    "linalg_inv_ex": "... m n -> ... m n, ...",
    "linalg_cholesky_ex": "... m n -> ... m n, ...",
    "_linalg_solve_ex": "... m n, ... a b -> ... a b, ... m n, ... m, ...",
    "linalg_lu_solve": "... m n, ... k, ... a b -> ... a b",
    "linalg_solve_triangular": "... m n, ... a b -> ... a b",
}

for _op, _letters in OF_MATRICES.items():
    _named = {letter for letter in _letters.replace(",", " ").split() if letter.isalpha()}
    _operands = _letters.partition("->")[0].count(",") + 1
    line(f"aten.{_op}.default", _letters, whole=" ".join(sorted(_named)), dense=tuple(range(_operands)))


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
