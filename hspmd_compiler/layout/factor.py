"""One factor of a dim, which an axis cuts into interval sets, one for each coordinate of the axis.

The samples of a dim may be cut by both axes: a rank of a stage has its share of each micro-batch, a product
of two cuts in one factor (`by_rank`), so that micro-batches need not be of one size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from .intervals import Intervals, Sets, intersect, map_sets, within


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


class Routed(NamedTuple):
    """Which rank has a row is data: it lies at the owner of its expert. key: of the routing that says so.
    rows: of the dim. home: how ranks hold the dim elsewhere."""

    key: int
    rows: int
    home: tuple[Factor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """One factor of a dim: `size`, and how an axis cuts it (axis and sets are None together).

    by_rank: of a factor that BATCH cuts, what each rank of the stage holds of it at most; None: all. No
    such factor has addends. routed: what ranks hold is known in a step only; their sets are those of an even
    load, for prices. Equal factors are one object, so that comparing and hashing them costs nothing.
    """

    size: int
    axis: Axis | None = None
    sets: Sets | None = None
    contrib: bool = False
    by_rank: Sets | None = None
    routed: Routed | None = None

    def __new__(
        cls,
        size: int,
        axis: Axis | None = None,
        sets: Sets | None = None,
        contrib: bool = False,
        by_rank: Sets | None = None,
        routed: Routed | None = None,
    ) -> Factor:
        key = (size, axis, sets, contrib, by_rank, routed)
        found = _FACTORS.get(key)
        if found is None:
            found = object.__new__(cls)
            _FACTORS[key] = found
        return found

    def __reduce__(self) -> tuple[object, ...]:
        return Factor, (self.size, self.axis, self.sets, self.contrib, self.by_rank, self.routed)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes that cut it: ranks beside the batch, where they share each micro-batch."""
        if self.axis is None:
            return ()
        return (self.axis,) if self.by_rank is None else (self.axis, Axis.TENSOR)

    @property
    def pieces(self) -> Sets:
        """All interval sets, of each axis that cuts it."""
        return (*(self.sets or ()), *(self.by_rank or ()))

    @property
    def of_ranks(self) -> Sets | None:
        """What each rank holds of it at most; None where ranks don't cut it."""
        if self.axis is None or self.axis.on_ranks:
            return self.sets
        return self.by_rank

    def cut_by(self, ranks: bool) -> Factor | None:
        """Its cut by ranks (or by the batch axis) alone; None where they don't cut it."""
        if self.axis is None or (self.axis.on_ranks != ranks and self.by_rank is None):
            return None
        if self.by_rank is None:
            return self
        if ranks:
            return Factor(self.size, Axis.TENSOR, self.by_rank, routed=self.routed)
        return Factor(self.size, self.axis, self.sets)

    def without(self, ranks: bool) -> Factor:
        """It without its cut by ranks (or by the batch axis)."""
        if self.cut_by(ranks) is None:
            return self
        return self.cut_by(not ranks) or Factor(self.size)

    def copies(self) -> Factor:
        """The same pieces, as copies in place of addends."""
        return Factor(self.size, self.axis, self.sets, by_rank=self.by_rank, routed=self.routed)

    def mapped(self, size: int, change: Callable[[Intervals], Intervals]) -> Factor:
        """A factor of another size, whose interval sets are made of these."""
        if self.sets is None:
            return Factor(size)
        by_rank = None if self.by_rank is None else map_sets(self.by_rank, change)
        return Factor(size, self.axis, map_sets(self.sets, change), self.contrib, by_rank, self.routed)

    def samples(self, batch: int) -> SamplePiece:
        """A micro-batch of a factor that BATCH cuts: how many elements, and where ranks' lie among them."""
        held = self.sets[batch] if self.sets is not None else ()
        own = tuple(within(held, intersect(held, each)) for each in self.by_rank or ())
        return sum(high - low for low, high in held), own

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
SamplePiece = tuple[int, Sets]
"""Elements of a micro-batch, and by rank its share of them, counted from the micro-batch's first."""
_FACTORS: dict[tuple[int, Axis | None, Sets | None, bool, Sets | None, Routed | None], Factor] = {}


def summed_over(factors: Iterable[Factor]) -> frozenset[Axis]:
    """The axes over which a sum along these factors is pending."""
    return frozenset(sum_axis(axis) for factor in factors for axis in factor.axes)


def sum_axis(axis: Axis | None) -> Axis:
    """A pending sum over a stage's ranks is over TENSOR, whichever way they cut before."""
    return Axis.BATCH if axis is Axis.BATCH else Axis.TENSOR


def scale(factor: Factor, inner: int) -> Factor:
    """The product of a factor and a whole factor of size `inner` at its right."""
    return factor.mapped(
        factor.size * inner, lambda held: tuple((low * inner, high * inner) for low, high in held)
    )
