"""Local form of an annotation: each dim a product of factors, each factor cut into interval sets.

A value of one pipeline lies on a small mesh of axes. TENSOR and SEQUENCE are the ranks of its stage
(the same coordinate; SEQUENCE says that tokens, not features, are cut, which products rather gather;
`placement` leaves that out), BATCH the micro-batches of all pipelines. A factor names the axis that cuts
it and, per coordinate, the sorted disjoint intervals that this coordinate holds. Overlapping pieces are
consistent copies, or, with `contrib`, addends (what nobody holds is then zero). `partial` lists axes with
a pending sum of whole values.

A hand-written annotation may say more (`several_cuts.py`): ranks cut several dims, or the samples of a
micro-batch; the addends of a sum over ranks are cut, or have copies. Operators never see such a layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import prod

from ..errors import InternalError
from .intervals import Intervals, Sets, first_period, intersect, is_disjoint, is_exact, is_full, period_of


class Axis(Enum):
    """A mesh-like axis; TENSOR and SEQUENCE share the ranks of a stage."""

    TENSOR = "t"
    SEQUENCE = "s"
    BATCH = "d"

    __hash__ = object.__hash__  # members are unique; the hash by name costs a Python call

    @property
    def on_ranks(self) -> bool:
        """Whether coordinates are ranks of the stage, so that pieces can be exchanged."""
        return self is not Axis.BATCH


@dataclass(frozen=True, slots=True)
class Coordinate:
    """Where a local value lies: `rank` in its stage and `batch` among all micro-batches."""

    rank: int
    batch: int

    def along(self, axis: Axis) -> int:
        """The position along `axis`."""
        return self.rank if axis.on_ranks else self.batch


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """One factor of a dim: `size`, and how an axis cuts it (axis and sets are None together).

    by_rank: of a factor that BATCH cuts, what each rank of the stage holds of it at most; None: all.
    Equal factors are one object, so that comparing and hashing them costs nothing.
    """

    size: int
    axis: Axis | None = None
    sets: Sets | None = None
    contrib: bool = False
    by_rank: Sets | None = None

    def __new__(
        cls,
        size: int,
        axis: Axis | None = None,
        sets: Sets | None = None,
        contrib: bool = False,
        by_rank: Sets | None = None,
    ) -> Factor:
        key = (size, axis, sets, contrib, by_rank)
        found = _FACTORS.get(key)
        if found is None:
            found = object.__new__(cls)
            _FACTORS[key] = found
        return found

    def __reduce__(self) -> tuple[object, ...]:
        return Factor, (self.size, self.axis, self.sets, self.contrib, self.by_rank)

    def length(self, at: Coordinate) -> int:
        """Local length at a coordinate."""
        if self.axis is None:
            return self.size
        return sum(high - low for low, high in self.held(at))

    def held(self, at: Coordinate) -> Intervals:
        """Intervals held at a coordinate."""
        if self.axis is None or self.sets is None:
            return ((0, self.size),) if self.size else ()
        held = self.sets[at.along(self.axis)]
        return held if self.by_rank is None else intersect(held, self.by_rank[at.rank])


Dim = tuple[Factor, ...]
_FACTORS: dict[tuple[int, Axis | None, Sets | None, bool, Sets | None], Factor] = {}

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
    for factor in dim:
        if factor.axis is not None and factor.axis.on_ranks == ranks:
            return factor
    return None


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


def sum_axis(axis: Axis | None) -> Axis:
    """A pending sum over a stage's ranks is over TENSOR, whichever way they cut before."""
    return Axis.BATCH if axis is Axis.BATCH else Axis.TENSOR


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


@cache
def canonical_dim(dim: Dim) -> Dim:
    """Merge, absorb and drop factors until one spelling is left for each way to cut a dim."""
    factors: list[Factor] = []
    for factor in dim:
        _check_bounds(factor)
        for part in _simplify(factor):
            _append(factors, part)
    return tuple(_absorb_left(factors))


def _simplify(factor: Factor) -> tuple[Factor, ...]:
    """A factor with full sets is whole; exact addends are pieces; a periodic set has an outer factor."""
    if factor.by_rank is not None:
        return (factor,)
    if factor.sets is None or factor.axis is None:
        return () if factor.size == 1 else (Factor(factor.size),)
    if is_full(factor.size, factor.sets):
        return () if factor.size == 1 else (Factor(factor.size),)
    contrib = factor.contrib and not is_exact(factor.size, factor.sets)
    period = factor.size if _all_or_nothing(factor) else period_of(factor.size, factor.sets)
    inner = Factor(period, factor.axis, first_period(factor.sets, period), contrib)
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


def scale(factor: Factor, inner: int) -> Factor:
    """The product of a factor and a whole factor of size `inner` at its right."""
    if factor.sets is None:
        return Factor(factor.size * inner)
    sets = tuple(tuple((low * inner, high * inner) for low, high in held) for held in factor.sets)
    return Factor(factor.size * inner, factor.axis, sets, factor.contrib)


def _all_or_nothing(factor: Factor) -> bool:
    return factor.sets is not None and all(held in ((), ((0, factor.size),)) for held in factor.sets)


@cache
def has_empty_piece(layout: Layout) -> bool:
    """Whether some coordinate holds nothing of a value that isn't empty itself."""
    return 0 not in layout.shape and any(
        not held for factor in layout.factors() for held in factor.sets or ()
    )


@cache
def has_unlike_copies(layout: Layout) -> bool:
    """Whether ranks that hold a common element hold different pieces around it."""
    for factor in layout.factors():
        if factor.sets is not None and not factor.contrib:
            flat = sorted(interval for held in set(factor.sets) for interval in held)
            if not is_disjoint(flat):
                return True
    return False


@cache
def cuts_of_samples(layout: Layout) -> int:
    """How many factors the micro-batches cut; more than one would be the samples beside themselves only."""
    return sum(factor.axis is Axis.BATCH for factor in layout.factors())


@cache
def sample_lengths(layout: Layout, batch: int) -> tuple[int, ...]:
    """What a BATCH coordinate holds of each factor that micro-batches cut, in elements."""
    return tuple(
        sum(high - low for low, high in factor.sets[batch])
        for factor in layout.factors()
        if factor.axis is Axis.BATCH and factor.sets is not None
    )
