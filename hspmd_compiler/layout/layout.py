"""Local form of an annotation: each dim a product of factors, each factor cut into interval sets.

A value of one pipeline lies on a small mesh of axes. TENSOR and SEQUENCE are the ranks of its stage
(the same coordinate; SEQUENCE says that tokens, not features, are cut, which products rather gather;
`placement` leaves that out), BATCH the micro-batches of all pipelines. A factor names the axis that cuts
it and, per coordinate, the sorted disjoint intervals that this coordinate holds. Overlapping pieces are
consistent copies, or, with `contrib`, addends (what nobody holds is then zero). `partial` lists axes with
a pending sum of whole values.

A hand-written annotation may say more (`several_cuts.py`): ranks cut several dims; the addends of a sum
over ranks are cut, or have copies. Operators never see such a layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

from ..errors import DeduceError, InternalError
from .factor import Axis as Axis
from .factor import Coordinate as Coordinate
from .factor import Dim as Dim
from .factor import Factor as Factor
from .factor import Routed as Routed
from .factor import SamplePiece
from .factor import scale as scale
from .factor import sum_axis as sum_axis
from .factor import summed_over as summed_over
from .intervals import Sets, first_period, intersect, is_disjoint, is_exact, is_full, period_of

Addends = tuple[int, ...]
_LAYOUTS: dict[tuple[tuple[Dim, ...], frozenset[Axis], Addends | None], Layout] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The layout of a tensor: one tuple of factors (row-major) per dim, and axes with a pending sum.

    addends: which addend of a sum over ranks each rank has; None: each its own. Equal layouts are one
    object. Make them with `make_layout`, which finds the canonical spelling.
    """

    dims: tuple[Dim, ...]
    partial: frozenset[Axis] = frozenset()
    addends: Addends | None = None

    def __new__(
        cls, dims: tuple[Dim, ...], partial: frozenset[Axis] = frozenset(), addends: Addends | None = None
    ) -> Layout:
        found = _LAYOUTS.get((dims, partial, addends))
        if found is None:
            found = object.__new__(cls)
            _LAYOUTS[dims, partial, addends] = found
        return found

    def __reduce__(self) -> tuple[object, ...]:
        return Layout, (self.dims, self.partial, self.addends)

    @property
    def shape(self) -> tuple[int, ...]:
        """Global shape."""
        return _shape_of(self)

    def local_shape(self, at: Coordinate) -> tuple[int, ...]:
        """Shape of the local tensor at a coordinate."""
        return _local_shape_of(self, at.rank, at.batch)

    def factors(self) -> tuple[Factor, ...]:
        """All factors in order."""
        return tuple(factor for dim in self.dims for factor in dim)

    def cut(self, ranks: bool) -> tuple[int, Factor] | None:
        """The (dim, factor) that the stage's ranks (or else the batch axis) cut, None if whole."""
        return _cut_of(self, ranks)

    def with_dims(self, dims: Iterable[Dim]) -> Layout:
        """The same pending sums on other dims, in canonical form."""
        return make_layout(tuple(dims), self.partial, self.addends)

    def with_dim(self, index: int, *dims: Dim) -> Layout:
        """The same with other dims in the place of one, or without it."""
        return self.with_dims((*self.dims[:index], *dims, *self.dims[index + 1 :]))


@cache
def _shape_of(layout: Layout) -> tuple[int, ...]:
    return tuple(dim_size(dim) for dim in layout.dims)


@cache
def _cut_of(layout: Layout, ranks: bool) -> tuple[int, Factor] | None:
    for index, dim in enumerate(layout.dims):
        factor = dim_cut(dim, ranks)
        if factor is not None:
            return index, factor
    return None


@cache
def _local_shape_of(layout: Layout, rank: int, batch: int) -> tuple[int, ...]:
    at = Coordinate(rank, batch)
    return tuple(prod(factor.length(at) for factor in dim) for dim in layout.dims)


@cache
def dim_size(dim: Dim) -> int:
    """Global length of a dim; the empty product is 1."""
    return prod(factor.size for factor in dim)


@cache
def dim_cut(dim: Dim, ranks: bool) -> Factor | None:
    """The factor of `dim` that ranks (or the batch axis) cut."""
    return next((found for factor in dim if (found := factor.cut_by(ranks)) is not None), None)


def whole(shape: Sequence[int], partial: frozenset[Axis] = frozenset()) -> Layout:
    """Every rank holds everything."""
    return make_layout(tuple((Factor(size),) for size in shape), partial)


@cache
def make_layout(
    dims: tuple[Dim, ...], partial: frozenset[Axis] = frozenset(), addends: Addends | None = None
) -> Layout:
    """The canonical layout, so that equal layouts are equal values.

    Full sets become whole, or a pending sum where they were addends.
    """
    pending = set(partial)
    result = []
    for dim in dims:
        for factor in dim:
            if factor.contrib and factor.sets is not None and is_full(factor.size, factor.sets):
                pending.add(sum_axis(factor.axis))
        result.append(canonical_dim(dim))
    return Layout(tuple(result), frozenset(pending), addends)


@cache
def placement(layout: Layout) -> Layout:
    """Where elements lie: the same for two layouts that place the same elements on the same ranks."""
    dims = tuple(
        tuple(Factor(f.size, Axis.TENSOR, f.sets, f.contrib) if f.axis is Axis.SEQUENCE else f for f in dim)
        for dim in layout.dims
    )
    return layout.with_dims(dims)


def _check_bounds(factor: Factor) -> None:
    """Pieces lie inside the dim: one beyond it would be elements that the whole tensor does not have."""
    ends = [
        (held[0][0], held[-1][1]) for sets in (factor.sets, factor.by_rank) for held in sets or () if held
    ]
    if any(low < 0 or high > factor.size for low, high in ends):
        raise InternalError(f"pieces {factor.sets} of a dim of {factor.size}", fix="report this strategy")


def _check_routed(dim: Dim) -> None:
    """Rows at their experts are the outermost part of a dim: which rows a rank has, no layout can say."""
    if any(factor.routed is not None for factor in dim[1:]):
        raise DeduceError(
            "rows that lie at the owners of their experts are repeated or put in another order",
            rule="between products of experts an operator treats each row by itself",
            fix="set `expert_form: gather`",
        )


def routing_of(layout: Layout) -> tuple[int, Routed] | None:
    """The dim whose rows lie at the owners of their experts."""
    cut = layout.cut(ranks=True)
    return None if cut is None or cut[1].routed is None else (cut[0], cut[1].routed)


def home_of(layout: Layout) -> Layout:
    """The layout of rows that come back from their experts' owners: addends where all ranks have all."""
    found = routing_of(layout)
    assert found is not None, "only rows at their experts have a home"
    home = found[1].home
    pending = layout.partial | ({Axis.TENSOR} if dim_cut(home, ranks=True) is None else set())
    return make_layout((*layout.dims[: found[0]], home, *layout.dims[found[0] + 1 :]), pending)


@cache
def canonical_dim(dim: Dim) -> Dim:
    """Merge, absorb and drop factors until one spelling is left for each way to cut a dim."""
    factors: list[Factor] = []
    _check_routed(dim)
    for factor in dim:
        _check_bounds(factor)
        for part in _simplify(factor):
            _append(factors, part)
    return tuple(_absorb_left(factors))


def _simplify(factor: Factor) -> tuple[Factor, ...]:
    """A factor with full sets is whole; exact addends are pieces; a periodic set has an outer factor."""
    if factor.routed is not None:
        return (factor,)
    if factor.by_rank is not None:
        return _simplify_product(factor, factor.by_rank)
    if factor.sets is None or factor.axis is None:
        return () if factor.size == 1 else (Factor(factor.size),)
    if is_full(factor.size, factor.sets):
        return () if factor.size == 1 else (Factor(factor.size),)
    contrib = factor.contrib and not is_exact(factor.size, factor.sets)
    period = factor.size if _all_or_nothing(factor) else period_of(factor.size, factor.sets)
    inner = Factor(period, factor.axis, first_period(factor.sets, period), contrib)
    return (inner,) if period == factor.size else (Factor(factor.size // period), inner)


def _simplify_product(factor: Factor, by_rank: Sets) -> tuple[Factor, ...]:
    """Of micro-batches and ranks one alone cuts where the other one has all."""
    if is_full(factor.size, by_rank):
        return _simplify(Factor(factor.size, factor.axis, factor.sets))
    if is_full(factor.size, factor.sets or ()):
        return _simplify(Factor(factor.size, Axis.TENSOR, by_rank))
    apart = factor.cut_by(ranks=True), factor.cut_by(ranks=False)
    whole_pieces = any(part is not None and _all_or_nothing(part) for part in apart)
    period = factor.size if whole_pieces else period_of(factor.size, factor.pieces)
    inner = factor.mapped(period, lambda held: intersect(held, ((0, period),)))
    return (inner,) if period == factor.size else (Factor(factor.size // period), inner)


def _append(factors: list[Factor], factor: Factor) -> None:
    """Join whole neighbours; a cut factor takes in the whole factor at its right."""
    if factors and factor.axis is None:
        last = factors[-1]
        factors[-1:] = [scale(last, factor.size)]
        return
    factors.append(factor)


def _absorb_left(factors: list[Factor]) -> list[Factor]:
    """A factor that each coordinate has whole or not at all takes in a whole factor at its left too."""
    result: list[Factor] = []
    for factor in factors:
        if result and result[-1].axis is None and _all_or_nothing(factor):
            outer = result.pop().size
            size = outer * factor.size
            sets = tuple(((0, size),) if held else () for held in factor.sets or ())
            factor = Factor(size, factor.axis, sets, factor.contrib)
        result.append(factor)
    return result


def _all_or_nothing(factor: Factor) -> bool:
    if factor.sets is None or factor.by_rank is not None or factor.routed is not None:
        return False
    return all(held in ((), ((0, factor.size),)) for held in factor.sets)


@cache
def has_empty_piece(layout: Layout) -> bool:
    """Whether some coordinate holds nothing of a value that isn't empty itself."""
    return 0 not in layout.shape and any(map(_has_empty_piece, layout.factors()))


def _has_empty_piece(factor: Factor) -> bool:
    if factor.routed is not None:
        return False
    if factor.by_rank is None:
        return any(not held for held in factor.sets or ())
    return not all(intersect(held, own) for held in factor.sets or () for own in factor.by_rank)


@cache
def has_unlike_copies(layout: Layout) -> bool:
    """Whether ranks that hold a common element hold different pieces around it."""
    return any(
        not is_disjoint(sorted(interval for held in set(sets) for interval in held))
        for factor in layout.factors()
        for sets in (factor.sets, factor.by_rank)
        if sets is not None and not factor.contrib
    )


@cache
def cuts_of_samples(layout: Layout) -> int:
    """How many factors the micro-batches cut; more than one would be the samples beside themselves only."""
    return sum(factor.axis is Axis.BATCH for factor in layout.factors())


@cache
def sample_pieces(layout: Layout, batch: int) -> tuple[SamplePiece, ...]:
    """What a BATCH coordinate holds of each factor that micro-batches cut."""
    return tuple(factor.samples(batch) for factor in layout.factors() if factor.axis is Axis.BATCH)
