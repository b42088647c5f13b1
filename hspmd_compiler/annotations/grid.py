"""Grid: one subgroup as 'which devices hold which piece', free of the way it was written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import gcd

from ..comm_plan import Interval
from .device import DeviceGroup
from .recut import split_from_pieces
from .region import Intervals, merge_intervals, shift_intervals
from .split import Split
from .states import DUPLICATE, PARTIAL, DistributedStates, Duplicate, Partial, Placement


@dataclass(frozen=True, slots=True)
class EvenPiece:
    """A piece of an even split of a length that isn't known."""

    parts: int
    unit: int
    place: int


Piece = Intervals | EvenPiece
Region = tuple[Piece, ...]
Devices = tuple[int, ...]

# All devices that hold nothing are alike, whichever empty piece they have.
NOTHING: Region = ((),)


@dataclass(frozen=True, slots=True)
class GridAxis:
    """A split dim: the piece of each coordinate, in a fixed order, a piece more than once if need be."""

    dim: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """Pieces, the number of addends and copies, and per region the holders of each addend."""

    axes: tuple[GridAxis, ...]
    addends: int
    copies: int
    holders: Mapping[Region, tuple[Devices, ...]]

    @property
    def devices(self) -> Devices:
        """All devices, ascending."""
        return tuple(sorted(d for classes in self.holders.values() for held in classes for d in held))

    def without(self, dim: int) -> tuple[GridAxis, ...]:
        """The axes of the other dims."""
        return tuple(axis for axis in self.axes if axis.dim != dim)


def grid_of(group: DeviceGroup, states: DistributedStates, extents: Mapping[int, Interval]) -> Grid:
    """The grid of a subgroup. extents: rows of a dim that the subgroup holds, where they are known."""
    pieces = {split.dim: _pieces(split, extents) for split in states.splits if split.parts > 1}
    raw = tuple(GridAxis(dim, pieces[dim]) for dim in sorted(pieces))
    classes: dict[Region, dict[int, list[int]]] = {}
    for place, device in enumerate(group):
        coordinates = states.coordinates(place)
        region = region_of([axis.pieces[coordinates[axis.dim]] for axis in raw])
        addend = 0 if region == NOTHING else coordinates.get(PARTIAL, 0)
        classes.setdefault(region, {}).setdefault(addend, []).append(device)
    holders = {
        region: tuple(tuple(sorted(held[addend])) for addend in sorted(held))
        for region, held in classes.items()
    }
    grid = Grid(raw, states.factor(PARTIAL), states.factor(DUPLICATE), holders)
    return _dropped(reduced(ordered(grid)))


def with_extent(grid: Grid, dim: int, piece: Piece) -> Grid:
    """The grid with an axis for `dim`, of one piece where it has none."""
    if any(axis.dim == dim for axis in grid.axes):
        return grid
    axes = tuple(sorted((*grid.axes, GridAxis(dim, (piece,))), key=lambda axis: axis.dim))
    place = [axis.dim for axis in axes].index(dim)
    holders: dict[Region, tuple[Devices, ...]] = {}
    for region, classes in grid.holders.items():
        pieces = region if region == NOTHING else (*region[:place], piece, *region[place:])
        key = region_of(pieces)
        holders[key] = classes if key != NOTHING else _joined([*holders.get(key, ()), *classes])
    return Grid(axes, grid.addends, grid.copies, holders)


def reduced(grid: Grid) -> Grid:
    """The same with each piece as seldom as possible; repetition becomes copies."""
    axes, copies = [], grid.copies
    for axis in grid.axes:
        counts = {piece: axis.pieces.count(piece) for piece in axis.pieces}
        common = gcd(*counts.values())
        kept = [piece for piece, count in counts.items() for _ in range(count // common)]
        axes.append(GridAxis(axis.dim, tuple(sorted(kept, key=_piece_order))))
        copies *= common
    return Grid(tuple(axes), grid.addends, copies, grid.holders)


def ordered(grid: Grid) -> Grid:
    """The same with addends in the order of their least devices, in each region for itself.

    Where pieces overlap, devices of two regions may hold one addend: then one order for all regions.
    """
    if grid.addends == 1:
        return grid
    if not any(map(_overlapping, grid.axes)):
        return replace(grid, holders={region: tuple(sorted(held)) for region, held in grid.holders.items()})
    somewhere = [held for region, held in grid.holders.items() if region != NOTHING]
    if not somewhere:
        return grid
    order = sorted(range(grid.addends), key=lambda addend: min(held[addend] for held in somewhere))
    holders = {
        region: held if region == NOTHING else tuple(held[addend] for addend in order)
        for region, held in grid.holders.items()
    }
    return replace(grid, holders=holders)


def region_of(pieces: Sequence[Piece]) -> Region:
    """The region of these pieces, NOTHING if one is empty."""
    return NOTHING if () in pieces else tuple(pieces)


def union_holders(grids: Sequence[Grid], *, summed: bool) -> dict[Region, tuple[Devices, ...]]:
    """Holders of all grids; in a region of several grids they are further addends, or further copies."""
    found: dict[Region, list[Devices]] = {}
    for grid in grids:
        for region, classes in grid.holders.items():
            found.setdefault(region, []).extend(classes)
    return {
        region: tuple(classes) if summed and region != NOTHING else _joined(classes)
        for region, classes in found.items()
    }


def subgroup_of(grid: Grid, extents: Mapping[int, Interval]) -> tuple[DeviceGroup, DistributedStates]:
    """The one way to write a grid: of all orders of placements the one with the least device ids."""
    bases = _placements(grid, extents)
    dealt = _dealt(grid, bases)
    orders = [_written(order, bases, dealt) for order in permutations(range(len(bases)))]
    devices, order = min(orders, key=lambda written: written[0])
    return DeviceGroup(devices), DistributedStates(tuple(bases[place] for place in order))


def _placements(grid: Grid, extents: Mapping[int, Interval]) -> tuple[Placement, ...]:
    splits: tuple[Placement, ...] = tuple(
        _split(axis, extents.get(axis.dim)) for axis in grid.axes if len(axis.pieces) > 1
    )
    partial = (Partial(grid.addends),) if grid.addends > 1 else ()
    copies = (Duplicate(grid.copies),) if grid.copies > 1 else ()
    return splits + partial + copies


def _split(axis: GridAxis, extent: Interval | None) -> Split:
    first = axis.pieces[0]
    if isinstance(first, EvenPiece):
        return Split(axis.dim, first.parts, unit=first.unit)
    known = [piece for piece in axis.pieces if not isinstance(piece, EvenPiece)]
    low, high = extent or (0, max((rows[-1][1] for rows in known if rows), default=0))
    return split_from_pieces(axis.dim, [shift_intervals(rows, -low) for rows in known], high - low)


def _dealt(grid: Grid, bases: Sequence[Placement]) -> dict[tuple[int, ...], int]:
    """Device per coordinates: devices with the same piece and addend in ascending order."""
    waiting = {region: [iter(held) for held in classes] for region, classes in grid.holders.items()}
    places = [range(placement.parts) for placement in bases]
    split = len([placement for placement in bases if isinstance(placement, Split)])
    dealt: dict[tuple[int, ...], int] = {}
    for coordinates in product(*places):
        region = _region_at(grid, coordinates[:split])
        addend = coordinates[split] if grid.addends > 1 and region != NOTHING else 0
        dealt[coordinates] = next(waiting[region][addend])
    return dealt


def _region_at(grid: Grid, coordinates: Sequence[int]) -> Region:
    places = iter(coordinates)
    return region_of([axis.pieces[next(places) if len(axis.pieces) > 1 else 0] for axis in grid.axes])


def _written(
    order: tuple[int, ...], bases: Sequence[Placement], dealt: Mapping[tuple[int, ...], int]
) -> tuple[Devices, tuple[int, ...]]:
    inverse = [order.index(place) for place in range(len(bases))]
    walk = product(*(range(bases[place].parts) for place in order))
    return tuple(dealt[tuple(digits[place] for place in inverse)] for digits in walk), order


def _pieces(split: Split, extents: Mapping[int, Interval]) -> tuple[Piece, ...]:
    known = split.known_length
    low, high = extents.get(split.dim, (0, known or 0))
    if low == high and split.dim not in extents:
        return tuple(EvenPiece(split.parts, split.unit, place) for place in range(split.parts))
    return tuple(shift_intervals(rows, low) for rows in split.pieces(high - low))


def _dropped(grid: Grid) -> Grid:
    """Without axes of one piece: the dim is whole."""
    kept = [place for place, axis in enumerate(grid.axes) if len(axis.pieces) > 1]
    axes = tuple(grid.axes[place] for place in kept)
    holders = {
        region if region == NOTHING else tuple(region[place] for place in kept): classes
        for region, classes in grid.holders.items()
    }
    return Grid(axes, grid.addends, grid.copies, holders)


def _piece_order(piece: Piece) -> tuple[bool, Intervals, int]:
    return (False, (), piece.place) if isinstance(piece, EvenPiece) else (not piece, piece, 0)


def _overlapping(axis: GridAxis) -> bool:
    pieces = {piece for piece in axis.pieces if not isinstance(piece, EvenPiece)}
    rows = [span for piece in pieces for span in piece]
    return _length(rows) > _length(merge_intervals(rows))


def _length(rows: Iterable[Interval]) -> int:
    return sum(high - low for low, high in rows)


def _joined(classes: Sequence[Devices]) -> tuple[Devices, ...]:
    return (tuple(sorted(device for held in classes for device in held)),)
