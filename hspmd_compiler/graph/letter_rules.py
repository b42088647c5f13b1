"""Rules of operators that take their dims one by one, in letters: windows, paddings, distances."""

from __future__ import annotations

from ..annotations.layout import Factor
from .cuts import whole_dim
from .empty_pieces import emit_unless_empty
from .ir import Row
from .letters import LETTERS, add_letters, parse_letters
from .pointwise_rules import settled_over_ranks
from .rules import Result, RuleContext, rule_for

SPACES = {1: "w", 2: "h w", 3: "d h w"}
NEW = {1: "x", 2: "y x", 3: "z y x"}
"""Dims of a space before and behind an operator that makes it larger or smaller."""


def _register(op: str, letters: str, *, sum: str = "", whole: str = "", sizes: str = "") -> None:
    add_letters(f"aten.{op}", parse_letters(op, letters, sum=sum, whole=whole, sizes=sizes))


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
    """Places among sorted numbers."""
    _register("searchsorted.Tensor", "bound, ... -> ...", whole="bound")


PAIRS = {"aten.view_as_complex.default": "... pair -> ...", "aten.view_as_real.default": "... -> ... pair"}
"""Pairs of numbers as complex ones, and back: passes read the letters, the rule lets pending sums pass."""
LETTERS |= {op: parse_letters(op, letters, whole="pair") for op, letters in PAIRS.items()}


@rule_for(*PAIRS)
def pairs(ctx: RuleContext, row: Row) -> Result:
    """Linear; the dim of the two parts is whole."""
    value = settled_over_ranks(ctx, ctx.operand(row.args[0]))
    rank = len(row.shape or ())
    if rank < len(value.layout.dims):
        value = whole_dim(ctx, value, rank)
        dims = value.layout.dims[:rank]
    else:
        dims = (*value.layout.dims, (Factor(2),))
    return emit_unless_empty(ctx, row, (value,), (value.layout.with_dims(dims),), (value,))


def _products() -> None:
    """Sums over a letter."""
    _register("mv.default", "m k, k -> m", sum="k")
    _register("dot.default", "k, k -> ", sum="k")
    _register("vdot.default", "k, k -> ", sum="k")


def _distances() -> None:
    """Between all pairs of points: PyTorch computes few points in another way than many."""
    _register("_cdist_forward.default", "... p d, ... r d -> ... p r", whole="p r d")
    _register("_cdist_backward.default", "... p r, ... p d, ... r d, ... p r -> ... p d", whole="p r d")


_spaces()
_numbers()
_products()
_distances()
