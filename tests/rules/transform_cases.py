"""How windows, diagonals, Fourier transforms and matrix functions are called, for the brute-force test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from hspmd_compiler.ir.graph import Ref
from hspmd_compiler.verify.rules.split_operands import Operand
from hspmd_compiler.verify.rules.split_operator import OperandSketch

from .rule_cases import FULL, WEIGHT, B, Case, F, T, Take, picked

PAIRS = replace(FULL, shape=(B, T, F, 2))
VIEWS: list[tuple[str, Operand, tuple[object, ...]]] = [
    ("unfold", FULL, (1, 2, 1)),
    ("unfold", FULL, (-1, 3, 2)),
    ("unfold", WEIGHT, (0, 2, 2)),
    ("unfold_backward", replace(FULL, shape=(B, 3, F, 2)), ((B, T, F), 1, 2, 1)),
    ("unfold_backward", replace(FULL, shape=(B, T, 2, 3)), ((B, T, F), -1, 3, 2)),
    ("diagonal", FULL, (0, 1, 2)),
    ("diagonal", FULL, (-1, -1, -2)),
    ("diagonal", WEIGHT, ()),
    ("diagonal_backward", replace(FULL, shape=(B, T)), ((B, T, F), 0, 1, 2)),
    ("diagonal_backward", replace(FULL, shape=(B, T - 1)), ((B, T, F), 1, -1, -2)),
]
TRANSFORMS: list[tuple[str, tuple[object, ...]]] = [
    ("_fft_r2c", ((1,), 0, True)),
    ("_fft_r2c", ((1, 2), 1, False)),
    ("_fft_c2c", ((2,), 2, True)),
    ("_fft_c2c", ((2, 1), 0, False)),
    ("_fft_c2r", ((2,), 2, 10)),
    ("_fft_c2r", ((2,), 0, 11)),
]


def transforms() -> Iterator[Case]:
    """All of them."""
    for name, operand, rest in VIEWS:
        op = f"aten.{name}.default"
        yield Case(op, lambda s, take, op=op, o=operand, r=rest: s.call(op, (take(o), *r)))  # type: ignore[misc]
    op = "aten.diagonal_scatter.default"
    for rest, size in (((0, 1, 2), T), ((1, -1, 1), T - 1)):
        source = replace(FULL, shape=(B, size))
        yield Case(op, lambda s, take, o=source, r=rest: s.call(op, (take(FULL), take(o), *r)))  # type: ignore[misc]
    for name, rest in TRANSFORMS:
        made = f"aten.{name}.default"
        yield Case(made, lambda s, take, op=made, r=rest: _transformed(s, take, op, r))  # type: ignore[misc]
    yield from matrices()


def _transformed(s: OperandSketch, take: Take, op: str, rest: tuple[object, ...]) -> None:
    given = (
        take(FULL) if op.endswith("r2c.default") else s.call("aten.view_as_complex.default", (take(PAIRS),))
    )
    made = s.call(op, (given, *rest))
    if not op.endswith("c2r.default"):
        s.call("aten.view_as_real.default", (made,))


def _regular(shape: tuple[int, ...]) -> Tensor:
    """Matrices far from singular, also in their triangles."""
    return torch.randn(shape, dtype=torch.float64) / 4 + 2 * torch.eye(*shape[-2:], dtype=torch.float64)


SQUARE = Operand((B, 2, 3, 3), _regular, linear=False)
TALL = Operand((B, 2, 4, 3), _regular, linear=False)
RIGHT = replace(FULL, shape=(B, 2, 3, 2))


def matrices() -> Iterator[Case]:
    """Functions of the last two dims."""
    calls: list[tuple[str, tuple[Operand, ...], dict[str, object], int]] = [
        ("linalg_matrix_exp", (SQUARE,), {}, 1),
        ("linalg_qr", (TALL,), {}, 2),
        ("_linalg_svd", (TALL,), {}, 3),
        ("_linalg_eigh", (SQUARE,), {}, 2),
        ("_linalg_slogdet", (SQUARE,), {}, 4),
        ("_linalg_det", (SQUARE,), {}, 3),
        ("linalg_inv_ex", (SQUARE,), {"check_errors": True}, 2),
        ("_linalg_solve_ex", (SQUARE, RIGHT), {"check_errors": True}, 4),
        ("linalg_solve_triangular", (SQUARE, RIGHT), {"upper": True}, 1),
    ]
    for name, operands, named, count in calls:
        op = f"aten.{name}.default"
        yield Case(op, lambda s, take, op=op, o=operands, n=named, c=count: _function(s, take, op, o, n, c))  # type: ignore[misc]
    yield Case("aten.linalg_lu_solve.default", _solved)
    yield Case("aten.linalg_cholesky_ex.default", _rooted)


def _function(
    s: OperandSketch, take: Take, op: str, operands: tuple[Operand, ...], named: dict[str, object], count: int
) -> None:
    given = tuple(take(operand) for operand in operands)
    if count == 1:
        s.call(op, given, named)
    else:
        picked(s, op, given, count, named)


def _solved(s: OperandSketch, take: Take) -> None:
    made = s.call("aten._linalg_slogdet.default", (take(SQUARE),))
    factors: tuple[Ref, ...] = tuple(s.pick(made, index) for index in (2, 3))
    s.call("aten.linalg_lu_solve.default", (*factors, take(RIGHT)))


def _rooted(s: OperandSketch, take: Take) -> None:
    half = take(replace(SQUARE, shape=(B, 3, 3)))
    square = s.call("aten.bmm.default", (half, s.call("aten.transpose.int", (half, 1, 2))))
    picked(s, "aten.linalg_cholesky_ex.default", (square,), 2, {"check_errors": True})
