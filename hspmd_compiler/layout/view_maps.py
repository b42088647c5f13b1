"""Layouts read in other shapes: factors cut and grouped anew, sets enlarged, sliced, thinned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from ..errors import DeduceError
from .intervals import Intervals, Sets, is_exact, map_sets, repeated, subtract, union
from .layout import Dim, Factor, Layout, canonical_dim, make_layout, routing_of, scale, whole
from .refine import cut_factor


@dataclass(frozen=True, slots=True)
class ViewMap:
    """A layout read in another shape, and the layout the source must be enlarged to first, if any."""

    source: Layout
    target: Layout


def map_view(layout: Layout, shape: Sequence[int]) -> ViewMap | None:
    """Read `layout` in `shape`; None where a cut factor can't be read even after enlarging its sets."""
    return _map_view(layout, tuple(shape))


@cache
def _map_view(layout: Layout, shape: tuple[int, ...]) -> ViewMap | None:
    routing = routing_of(layout)
    if routing is not None and any(size != 1 for size in layout.shape[: routing[0]]):
        return None
    if 0 in shape or 0 in layout.shape:
        return ViewMap(layout, whole(shape, layout.partial)) if layout.cut(ranks=True) is None else None
    queue = list(canonical_dim(layout.factors()))
    taken: list[Factor] = []
    dims: list[Dim] = []
    enlarged = False
    for size in shape:
        parts = _take(queue, size)
        if parts is None:
            return None
        dims.append(tuple(parts[0]))
        taken += parts[0]
        enlarged |= parts[1]
    if any(factor.routed is not None and factor.size != factor.routed.rows for dim in dims for factor in dim):
        return None
    if queue:
        return None  # a cut dim of length 1 that the new shape has no dim for
    target = make_layout(tuple(dims), layout.partial)
    if not enlarged:
        return ViewMap(layout, target)
    grouped = _group(taken, layout.shape)
    return None if grouped is None else ViewMap(make_layout(grouped, layout.partial), target)


def _take(queue: list[Factor], size: int) -> tuple[list[Factor], bool] | None:
    """Factors from the front of `queue` whose product is `size`, and whether sets were enlarged for it."""
    parts: list[Factor] = []
    left = size
    while left > 1:
        if not queue:
            return None
        factor = queue.pop(0)
        if left % factor.size == 0:
            parts.append(factor)
            left //= factor.size
            continue
        pieces = cut_factor(factor, left)
        enlarged = pieces is None
        if pieces is None:
            pieces = _cut_enlarged(factor, left)
        if pieces is None:
            return None
        queue.insert(0, pieces[1])
        return [*parts, pieces[0]], enlarged
    while queue and queue[0].size == 1:
        parts.append(queue.pop(0))
    return parts, False


def _cut_enlarged(factor: Factor, outer: int) -> tuple[Factor, Factor] | None:
    """Cut a factor whose sets don't allow it, enlarged to multiples of the inner size, as addends."""
    if factor.size % outer or factor.sets is None or factor.axis is None or not factor.axis.on_ranks:
        return None
    if factor.routed is not None:
        return None
    if not factor.contrib and not is_exact(factor.size, factor.sets):
        return None
    inner = factor.size // outer
    return cut_factor(enlarge(factor, inner), outer)


def enlarge(factor: Factor, step: int) -> Factor:
    """Sets with bounds at multiples of `step`; what was not held counts as zero, so pieces are addends."""

    def grow(held: Intervals) -> Intervals:
        return union((low // step * step, -(-high // step) * step) for low, high in held)

    return Factor(factor.size, factor.axis, map_sets(factor.sets or (), grow), contrib=True)


def _group(factors: Sequence[Factor], shape: Sequence[int]) -> tuple[Dim, ...] | None:
    """The same factors in the source's own dims, None where they straddle its dims."""
    queue = list(factors)
    dims: list[Dim] = []
    for size in shape:
        parts = _take(queue, size)
        if parts is None or parts[1]:
            return None
        dims.append(tuple(parts[0]))
    return tuple(dims)


def flat_factor(dim: Dim) -> Factor:
    """A dim that at most one axis cuts as one factor: what a coordinate holds, as intervals of the dim."""
    result = Factor(1)
    for factor in reversed(dim):
        result = _times(factor, result)
    return result


def _times(outer: Factor, inner: Factor) -> Factor:
    if inner.sets is None:
        return scale(outer, inner.size)
    return inner.mapped(outer.size * inner.size, lambda held: repeated(held, inner.size, outer.size))


def slice_factor(factor: Factor, low: int, high: int) -> Factor:
    """The factor of the elements in [low, high)."""
    _check_parts([factor])

    def cut(held: Intervals) -> Intervals:
        return union((max(a, low) - low, min(b, high) - low) for a, b in held)

    return factor.mapped(high - low, cut)


def at_places(parts: Sequence[tuple[int, Factor]], size: int) -> Factor:
    """Factors that the same axes cut, each at its place in a dim of `size`.

    Between them is zero, which nobody holds, so that pieces are addends.
    """
    factors = [factor for _, factor in parts]
    _check_parts(factors)
    places = [at for at, _ in parts]
    sets = _side_by_side(places, [factor.sets or () for factor in factors])
    adds = any(factor.contrib for factor in factors) or sum(factor.size for factor in factors) < size
    if factors[0].by_rank is None:
        return Factor(size, factors[0].axis, sets, adds)
    by_rank = _side_by_side(places, [factor.by_rank or () for factor in factors])
    return Factor(size, factors[0].axis, sets, adds, by_rank)


def _check_parts(factors: Sequence[Factor]) -> None:
    """Rows at their experts are no parts of a longer dim, and have none."""
    if any(factor.routed is not None for factor in factors):
        raise DeduceError(
            "rows that lie at the owners of their experts are joined with others, or some of them left out",
            rule="between products of experts an operator treats each row by itself",
            fix="set `expert_form: gather`",
        )


def _side_by_side(places: Sequence[int], sets: Sequence[Sets]) -> Sets:
    return tuple(
        union((low + at, high + at) for at, own in zip(places, held, strict=True) for low, high in own)
        for held in zip(*sets, strict=True)
    )


def first_holders(sets: Sets) -> Sets:
    """Each element at its first holder only."""
    seen: Intervals = ()
    result = []
    for held in sets:
        result.append(subtract(held, seen))
        seen = union((*seen, *held))
    return tuple(result)


def deduplicated(layout: Layout) -> Layout:
    """The layout in which the first holder of an element is its only holder."""
    return make_layout(tuple(tuple(map(held_once, dim)) for dim in layout.dims), layout.partial)


def held_once(factor: Factor) -> Factor:
    """Each element at its first holder among the ranks."""
    if factor.routed is not None:
        return factor
    if factor.by_rank is not None:
        return Factor(factor.size, factor.axis, factor.sets, by_rank=first_holders(factor.by_rank))
    on_ranks = factor.sets and factor.axis and factor.axis.on_ranks
    return Factor(factor.size, factor.axis, first_holders(factor.sets or ())) if on_ranks else factor
