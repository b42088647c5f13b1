"""Rules of operators that take their dims one by one, in letters: windows, paddings, distances."""

from __future__ import annotations

from dataclasses import replace

from .letters import add_letters, parse_letters

SPACES = {1: "w", 2: "h w", 3: "d h w"}
NEW = {1: "x", 2: "y x", 3: "z y x"}
"""Dims of a space before and behind an operator that makes it larger or smaller."""


def _register(
    op: str,
    letters: str,
    *,
    sum: str = "",
    whole: str = "",
    sizes: str = "",
    linear: bool = False,
    dense: bool = False,
    kernel: str = "",
) -> None:
    made = parse_letters(op, letters, sum=sum, whole=whole)
    add_letters(f"aten.{op}", replace(made, sizes=sizes, linear=linear, dense=dense, kernel=kernel))


def _spaces() -> None:
    """Samples and channels are parallel; space is whole."""
    for dims, old in SPACES.items():
        new = NEW[dims]
        both = f"{old} {new}"
        for name in (f"reflection_pad{dims}d", f"replication_pad{dims}d"):
            _register(f"{name}.default", f"... {old} -> ... {new}", whole=both)
            _register(f"{name}_backward.default", f"... {new}, ... {old} -> ... {old}", whole=both)
        if dims > 1:
            _register(f"max_unpool{dims}d.default", f"... {old}, ... {old} -> ... {new}", whole=both)
            sampled = f"n c {old}, n {new} place -> n c {new}"
            _register(f"grid_sampler_{dims}d.default", sampled, whole=f"{both} place")
            given = f"n c {new}, n c {old}, n {new} place -> n c {old}, n {new} place"
            _register(f"grid_sampler_{dims}d_backward.default", given, whole=f"c {both} place")
    for name in ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
        _register(f"{name}.default", "... h w -> ... y x", whole="h w y x")
        _register(f"{name}_backward.default", "... y x -> ... h w", whole="h w y x", sizes="input_size")


def _numbers() -> None:
    """Pairs of numbers as complex ones, and places among sorted numbers."""
    as_complex = "hspmd.view_as_complex"
    _register("view_as_complex.default", "... pair -> ...", whole="pair", linear=True, kernel=as_complex)
    _register("view_as_real.default", "... -> ... pair", whole="pair", linear=True)
    _register("searchsorted.Tensor", "bound, ... -> ...", whole="bound")


def _products() -> None:
    """Sums over a letter."""
    _register("mv.default", "m k, k -> m", sum="k")
    _register("dot.default", "k, k -> ", sum="k")
    _register("vdot.default", "k, k -> ", sum="k")


def _distances() -> None:
    """Between all pairs of points: PyTorch computes few points in another way than many."""
    _register("_cdist_forward.default", "... p d, ... r d -> ... p r", whole="p r d")
    _register("_cdist_backward.default", "... p r, ... p d, ... r d, ... p r -> ... p d", whole="p r d")


def _matrices() -> None:
    """Of the last two dims; those before them are parallel."""
    for op, letters in _OF_MATRICES.items():
        named = {letter for letter in letters.replace(",", " ").split() if letter.isalpha()}
        _register(f"{op}.default", letters, whole=" ".join(sorted(named)), dense=True)


_OF_MATRICES = {
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


_spaces()
_numbers()
_products()
_distances()
_matrices()
