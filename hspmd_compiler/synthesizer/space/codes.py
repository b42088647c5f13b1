"""Types of one value as small numbers: how a row's ways and the states of a search name them."""

from __future__ import annotations

from collections.abc import Sequence

from ..value_types import Holding, ValueType
from .cuts import ValueCut

REPLICATE, WHOLE, PENDING, FIRST_CUT = 0, 1, 2, 3
"""The codes of every value; behind them its cuts in order, each with all ratio vectors."""
_HELD = (Holding.REPLICATE, Holding.WHOLE, Holding.PENDING)


def cut_code(place: int, vertex: int, vertices: int) -> int:
    """Of the cut at `place` of a value's cuts, by a ratio vector."""
    return FIRST_CUT + place * vertices + vertex


def cut_of(code: int, vertices: int) -> tuple[int, int]:
    """(place, vertex) of a cut's code."""
    return divmod(code - FIRST_CUT, vertices)


def is_cut(code: int) -> bool:
    """Whether ranks hold pieces."""
    return code >= FIRST_CUT


def serves(held: int, wanted: int) -> bool:
    """Whether a value can be used as `wanted` as it is, forward and backward, by any reader.

    Of a pending gradient one rank may give all of it.
    """
    return held == wanted or (held == WHOLE and wanted == REPLICATE)


def meets(held: Sequence[int], wanted: Sequence[int], *, cut: bool) -> bool:
    """Whether operands can be used as a way wants them.

    cut: whether another operand is cut as the way says. Where one is, each rank slices its piece of those
    that are whole, whose gradient is then among zeros: operands meet in the cut. Where none is, no strategy
    can say that they are sliced, for this reader alone.
    """
    if held == wanted or all(map(serves, held, wanted)):
        return True
    if WHOLE not in held:
        return False
    if not (cut or any(one == other and is_cut(one) for one, other in zip(held, wanted, strict=True))):
        return False
    pairs = zip(held, wanted, strict=True)
    return all(serves(one, other) or (one == WHOLE and is_cut(other)) for one, other in pairs)


def type_of(code: int, cuts: tuple[ValueCut, ...], vertices: int) -> ValueType:
    """The type that a code names."""
    if not is_cut(code):
        return ValueType(_HELD[code])
    place, vertex = cut_of(code, vertices)
    cut = cuts[place]
    return ValueType(Holding.SPLIT, cut.dim, None if cut.elements else cut.units, vertex, cut.repeats)
