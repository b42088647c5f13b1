"""One form for equal layouts, and the question whether two annotations mean the same.

`normalize` finds the same form for annotations that differ in: the order of placements together
with the order of devices; the order of devices that hold the same; the order of subgroups under
hetero=dup or partial; subgroups that could be one (copies, addends, or neighbours along the hetero
dim); parts of 1; shares, units and blocks that say what an even split says; intervals that repeat.
Not unified: pieces written by overlapping intervals in one place and by hetero=dup in another;
devices that hold nothing, counted to one split or subgroup or to another; which addends of separate
subgroups belong together where pieces overlap. `same_layout` answers for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import groupby

from ..comm_plan import Interval
from .annotation import Addend, Annotation, Shape
from .device import DeviceGroup
from .grid import (
    EvenPiece,
    Grid,
    GridAxis,
    grid_of,
    ordered,
    reduced,
    subgroup_of,
    union_holders,
    with_extent,
)
from .region import intersect_all, merge_intervals
from .split import consecutive, even_lengths
from .states import PARTIAL, DistributedStates

Extents = Mapping[int, Interval]


class Relation(Enum):
    """How the pieces of two devices relate where their boxes overlap."""

    EQUAL = "equal"
    ADDED = "added"
    ALTERNATIVE = "alternative"


def normalize(annotation: Annotation, shape: Shape | None = None) -> Annotation:
    """The normal form, with the same regions and addends on every shape that `annotation` fits.

    With `shape` the lengths are known, so more is seen to be equal; the result then holds for it only.
    """
    if shape is not None:
        annotation.check(shape)
    if shape is not None and 0 in shape:  # nobody holds anything: all layouts are one
        return Annotation.single(sorted(annotation.devices))
    lengths = _known_lengths(annotation, shape)
    if isinstance(annotation.hetero, int):
        return _along_dim(annotation, annotation.hetero, lengths)
    extents = {dim: (0, length) for dim, length in lengths.items()}
    pairs = zip(annotation.groups, annotation.states, strict=True)
    grids = [grid_of(group, states, extents) for group, states in pairs]
    return _annotation(_folded(grids, annotation), annotation, extents)


def same_layout(first: Annotation, second: Annotation, shape: Shape) -> bool:
    """Whether each device holds the same boxes, and overlapping pieces relate in the same way."""
    if first == second:
        return True
    regions = first.regions(shape)
    if regions != second.regions(shape):
        return False
    if not first.is_partial and not second.is_partial:
        return True
    own, other = first.addends(), second.addends()
    devices = sorted(regions)
    return all(
        relation(own[a], own[b]) is relation(other[a], other[b])
        for place, a in enumerate(devices)
        for b in devices[:place]
        if intersect_all(regions[a], regions[b])
    )


def relation(first: Addend, second: Addend) -> Relation:
    """How two addends relate."""
    if first.alternative != second.alternative:
        return Relation.ALTERNATIVE
    return Relation.EQUAL if first.index == second.index else Relation.ADDED


def _known_lengths(annotation: Annotation, shape: Shape | None) -> dict[int, int]:
    """Length per dim, from the shape or from shares; an empty dim counts as unknown."""
    if shape is not None:
        return dict(enumerate(shape))
    splits = [split for states in annotation.states for split in states.splits]
    known = {split.dim: split.known_length for split in splits if split.known_length}
    lengths = {dim: length for dim, length in known.items() if length and dim != annotation.hetero}
    if isinstance(annotation.hetero, int) and (total := sum(_hetero_lengths(annotation) or ())):
        lengths[annotation.hetero] = total
    return lengths


def _hetero_lengths(annotation: Annotation) -> tuple[int, ...] | None:
    """Lengths per subgroup, from the hetero shares or from the subgroups' own shares."""
    dim = annotation.hetero
    if annotation.hetero_shares is not None or not isinstance(dim, int):
        return annotation.hetero_shares
    splits = [states.split_of(dim) for states in annotation.states]
    own = [split.known_length for split in splits if split is not None]
    known = tuple(length for length in own if length is not None)
    return known if len(known) == len(annotation.groups) else None


def _folded(grids: Sequence[Grid], annotation: Annotation) -> list[Grid]:
    """Subgroups that could be one, joined; the rest by their least device."""
    summed = annotation.hetero is PARTIAL
    alike: dict[object, list[Grid]] = {}
    for place, grid in enumerate(grids):
        key = (grid.axes, grid.copies if summed else None if grid.addends == 1 else place)
        alike.setdefault(key, []).append(grid)
    joined = [_stacked(several, summed) for several in alike.values()]
    return sorted(joined, key=lambda grid: grid.devices)


def _stacked(grids: Sequence[Grid], summed: bool) -> Grid:
    if len(grids) == 1:
        return grids[0]
    first, holders = grids[0], union_holders(grids, summed=summed)
    if summed:
        return ordered(Grid(first.axes, sum(grid.addends for grid in grids), first.copies, holders))
    return Grid(first.axes, 1, sum(grid.copies for grid in grids), holders)


def _annotation(grids: Sequence[Grid], annotation: Annotation, extents: Extents) -> Annotation:
    groups, states = zip(*(subgroup_of(grid, extents) for grid in grids), strict=True)
    return Annotation(groups, states, annotation.hetero if len(grids) > 1 else None)


def _along_dim(annotation: Annotation, dim: int, lengths: Mapping[int, int]) -> Annotation:
    """Subgroups side by side along `dim`: neighbours of one kind become one."""
    others = {key: (0, length) for key, length in lengths.items() if key != dim}
    if dim not in lengths:
        return _unmeasured(annotation, dim, others)
    count = len(annotation.groups)
    shares = _hetero_lengths(annotation) or even_lengths(lengths[dim], count)
    order = sorted(range(count), key=lambda u: shares[u] == 0)
    spans = consecutive([shares[u] for u in order])
    sides = [
        (with_extent(_grid(annotation, u, {**others, dim: span}), dim, merge_intervals([span])), span)
        for u, span in zip(order, spans, strict=True)
    ]
    merged = _neighbours_merged(sides, dim)
    written = [subgroup_of(grid, {**others, dim: span}) for grid, span in merged]
    return _joined_along(written, dim, tuple(high - low for _, (low, high) in merged))


def _neighbours_merged(sides: list[tuple[Grid, Interval]], dim: int) -> list[tuple[Grid, Interval]]:
    """Runs of one kind as one, until there is none; merging empty pieces may make new runs."""
    runs = [list(run) for _, run in groupby(sides, key=lambda side: _kind(side[0], dim))]
    if len(runs) == len(sides):
        return sides
    merged = [(_side_by_side([grid for grid, _ in run], dim), (run[0][1][0], run[-1][1][1])) for run in runs]
    return _neighbours_merged(merged, dim)


def _joined_along(
    written: Sequence[tuple[DeviceGroup, DistributedStates]], dim: int, shares: tuple[int, ...]
) -> Annotation:
    groups, states = zip(*written, strict=True)
    if len(written) == 1:
        return Annotation(groups, states)
    even = shares == even_lengths(sum(shares), len(shares))
    return Annotation(groups, states, dim, None if even else shares)


def _unmeasured(annotation: Annotation, dim: int, others: Extents) -> Annotation:
    """Even shares of an unknown length: one group if all subgroups are of one kind and leave `dim` whole."""
    count = len(annotation.groups)
    grids = [_grid(annotation, u, others) for u in range(count)]
    cut = any(states.factor(dim) > 1 for states in annotation.states)
    if cut or len({_kind(grid, dim) for grid in grids}) > 1:
        groups, states = zip(*(subgroup_of(grid, others) for grid in grids), strict=True)
        return Annotation(groups, states, dim, annotation.hetero_shares)
    shared = [with_extent(grid, dim, EvenPiece(count, 1, u)) for u, grid in enumerate(grids)]
    group, states_of_all = subgroup_of(_side_by_side(shared, dim), others)
    return Annotation((group,), (states_of_all,))


def _side_by_side(grids: Sequence[Grid], dim: int) -> Grid:
    pieces = tuple(piece for grid in grids for axis in grid.axes if axis.dim == dim for piece in axis.pieces)
    axes = (*grids[0].without(dim), GridAxis(dim, pieces))
    first = grids[0]
    joined = Grid(
        tuple(sorted(axes, key=lambda axis: axis.dim)),
        first.addends,
        first.copies,
        union_holders(grids, summed=True),
    )
    return reduced(ordered(joined))


def _kind(grid: Grid, dim: int) -> tuple[tuple[GridAxis, ...], int, int]:
    return grid.without(dim), grid.addends, grid.copies


def _grid(annotation: Annotation, u: int, extents: Extents) -> Grid:
    return grid_of(annotation.groups[u], annotation.states[u], extents)
