"""Functions of matrices as tracing writes them out: errors are found, memory lies as gradients assume."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

aten = torch.ops.aten


def determinant(matrix: Tensor) -> Tensor:
    """PyTorch's gradient assumes factors of the transpose where the matrix lies in order, as it does here."""
    return aten._linalg_det.default(matrix.contiguous())[0]  # type: ignore[no-any-return]


def log_determinant(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Sign and logarithm; see `determinant`."""
    sign, logarithm, _, _ = aten._linalg_slogdet.default(matrix.contiguous())
    return sign, logarithm


def inverse(matrix: Tensor) -> Tensor:
    """The kernel itself says which matrix has none: a trace has no numbers to look at."""
    return aten.linalg_inv_ex.default(matrix, check_errors=True)[0]  # type: ignore[no-any-return]


def cholesky(matrix: Tensor, *, upper: bool = False) -> Tensor:
    """As `inverse`, of matrices that are not positive definite."""
    return aten.linalg_cholesky_ex.default(matrix, upper=upper, check_errors=True)[0]  # type: ignore[no-any-return]


def solve(matrix: Tensor, right: Tensor, *, left: bool = True) -> Tensor:
    """As `inverse` and `determinant`."""
    made = aten._linalg_solve_ex.default(matrix.contiguous(), right, left=left, check_errors=True)
    return made[0]  # type: ignore[no-any-return]


WRITTEN_OUT: Mapping[torch._ops.OpOverload, Callable[..., object]] = {
    aten.linalg_det.default: determinant,
    aten.linalg_slogdet.default: log_determinant,
    aten.linalg_inv.default: inverse,
    aten.linalg_cholesky.default: cholesky,
    aten.linalg_solve.default: solve,
}
