"""The table's lines of functions of matrices: the last two dims are whole, those before them parallel."""

from __future__ import annotations

from ..op_apply import line

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
