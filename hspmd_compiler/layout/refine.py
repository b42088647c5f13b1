"""Common refinement of two layouts, and the boxes that move between their pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from ..base.comm_plan import Box
from ..errors import InternalError
from .intervals import Intervals, intersect, repeated
from .layout import Coordinate, Dim, Factor, Layout, dim_size

FactorPair = tuple[Factor, Factor]


@cache
def cut_factor(factor: Factor, outer: int) -> tuple[Factor, Factor] | None:
    """`factor` as (outer, inner), None where its intervals allow no such cut.

    Either every bound is a multiple of the inner size (the outer part is cut), or every set repeats
    with it (the inner part is cut).
    """
    if outer < 1 or factor.size % outer or (factor.routed is not None and outer != factor.routed.rows):
        return None
    inner = factor.size // outer
    if factor.sets is None:
        return Factor(outer), Factor(inner)
    bounds = (bound for held in factor.pieces for interval in held for bound in interval)
    if all(bound % inner == 0 for bound in bounds):
        cut = factor.mapped(outer, lambda held: tuple((low // inner, high // inner) for low, high in held))
        return cut, Factor(inner)
    first = factor.mapped(inner, lambda held: intersect(held, ((0, inner),)))
    if all(
        repeated(own, inner, outer) == held for own, held in zip(first.pieces, factor.pieces, strict=True)
    ):
        return Factor(outer), first
    return None


def refine_dim(first: Dim, second: Dim) -> list[FactorPair] | None:
    """Two spellings of one dim as factors of equal sizes, None where no common cut exists.

    Ends: what is left of both sides stays of equal size, and each turn takes a factor off one of them.
    """
    if dim_size(first) != dim_size(second):
        raise InternalError(f"a dim of {dim_size(first)} can't be converted to one of {dim_size(second)}")
    if dim_size(first) == 0:
        return _zero_sized(first, second)
    left, right = list(first), list(second)
    pairs: list[FactorPair] = []
    while left or right:
        a = left.pop(0) if left else Factor(1)
        b = right.pop(0) if right else Factor(1)
        if a.size < b.size:
            parts = cut_factor(b, a.size)
            if parts is None:
                return None
            b, rest = parts
            right.insert(0, rest)
        elif b.size < a.size:
            parts = cut_factor(a, b.size)
            if parts is None:
                return None
            a, rest = parts
            left.insert(0, rest)
        pairs.append((a, b))
    return pairs


def _zero_sized(first: Dim, second: Dim) -> list[FactorPair] | None:
    if first == second:
        return [(Factor(0), Factor(0))]
    sizes = [[factor.size for factor in dim] for dim in (first, second)]
    return list(zip(first, second, strict=True)) if sizes[0] == sizes[1] else None


@dataclass(frozen=True, slots=True)
class Refined:
    """Source and destination in one factorisation: factor pairs, and how many factors each dim has."""

    pairs: tuple[FactorPair, ...]
    counts: tuple[int, ...]

    def view(self, at: Coordinate, source: bool) -> tuple[int, ...]:
        """Local factored view of the source (or destination) tensor at a coordinate."""
        return tuple((src if source else dst).length(at) for src, dst in self.pairs)


@cache
def refine(source: Layout, target: Layout) -> Refined | None:
    """The common refinement of two layouts of one tensor, None where there is none."""
    pairs: list[FactorPair] = []
    counts: list[int] = []
    for first, second in zip(source.dims, target.dims, strict=True):
        dim_pairs = refine_dim(first, second)
        if dim_pairs is None:
            return None
        pairs += dim_pairs
        counts.append(len(dim_pairs))
    return Refined(tuple(pairs), tuple(counts))


def boxes_of(per_factor: Sequence[Intervals]) -> tuple[Box, ...]:
    """All boxes of a product of interval sets, row-major."""
    return tuple(tuple(box) for box in product(*per_factor))
