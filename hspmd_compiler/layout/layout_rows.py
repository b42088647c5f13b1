"""What one coordinate holds of a tensor with a given layout, as rows of each whole dim."""

from __future__ import annotations

from functools import cache

from .intervals import Intervals, union
from .layout import Coordinate, Dim, Factor, Layout, dim_size


def dim_intervals(dim: Dim, at: Coordinate) -> Intervals:
    """The elements of a dim that a coordinate holds, as intervals of the whole dim."""
    held: Intervals = ((0, 1),)
    inner = 1
    for factor in reversed(dim):
        held = _outer(factor, held, inner, at)
        inner *= factor.size
    return held if dim_size(dim) else ()


def _outer(factor: Factor, held: Intervals, inner: int, at: Coordinate) -> Intervals:
    if held == ((0, inner),):
        return union((low * inner, high * inner) for low, high in factor.held(at))
    indices = (index for low, high in factor.held(at) for index in range(low, high))
    return union((low + index * inner, high + index * inner) for index in indices for low, high in held)


@cache
def held_rows(layout: Layout, at: Coordinate) -> tuple[Intervals, ...]:
    """Per dim the rows, ascending; the local tensor is their product, in this order."""
    return tuple(dim_intervals(dim, at) for dim in layout.dims)
