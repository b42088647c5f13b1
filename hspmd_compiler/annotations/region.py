"""Intervals and boxes: which elements of a tensor, as sets that can be cut and compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise, product

from ..comm_plan import Box, Interval, box_volume

Intervals = tuple[Interval, ...]


def merge_intervals(intervals: Iterable[Interval]) -> Intervals:
    """Union as ascending, separate, non-empty intervals."""
    merged: list[Interval] = []
    for low, high in sorted(item for item in intervals if item[0] < item[1]):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def shift_intervals(intervals: Iterable[Interval], offset: int) -> Intervals:
    """Each interval moved up by `offset`."""
    return tuple((low + offset, high + offset) for low, high in intervals)


def whole_box(shape: Sequence[int]) -> Box:
    """The box of all elements of a shape."""
    return tuple((0, length) for length in shape)


def product_boxes(dims: Sequence[Intervals]) -> tuple[Box, ...]:
    """One box for each choice of an interval per dim, row-major; () for no dims is the scalar."""
    return tuple(product(*dims))


def volume(boxes: Iterable[Box]) -> int:
    """Elements of all boxes, an element in two boxes counted twice."""
    return sum(map(box_volume, boxes))


def intersect(first: Box, second: Box) -> Box | None:
    """The common box, None if there is no common element."""
    common = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(first, second, strict=True))
    return None if any(low >= high for low, high in common) else common


def subtract(box: Box, hole: Box) -> tuple[Box, ...]:
    """What is left of `box` without `hole`, as disjoint boxes."""
    common = intersect(box, hole)
    if common is None:
        return (box,) if box_volume(box) else ()
    left: list[Box] = []
    for dim, ((low, high), (cut_low, cut_high)) in enumerate(zip(box, common, strict=True)):
        outside = ((low, cut_low), (cut_high, high))
        left += [(*common[:dim], side, *box[dim + 1 :]) for side in outside if side[0] < side[1]]
    return tuple(left)


def subtract_all(boxes: Iterable[Box], holes: Iterable[Box]) -> tuple[Box, ...]:
    """What is left of `boxes` without any of `holes`."""
    left = tuple(boxes)
    for hole in holes:
        left = tuple(rest for box in left for rest in subtract(box, hole))
    return tuple(box for box in left if box_volume(box))


def intersect_all(first: Iterable[Box], second: Iterable[Box]) -> tuple[Box, ...]:
    """The common boxes of each pair, in the order of `first`."""
    others = tuple(second)
    pairs = (intersect(box, other) for box in first for other in others)
    return tuple(common for common in pairs if common is not None)


def disjoint(boxes: Iterable[Box]) -> bool:
    """Whether no element is in two boxes."""
    found = tuple(boxes)
    return volume(union(found)) == volume(found)


def covers(boxes: Iterable[Box], whole: Box) -> bool:
    """Whether every element of `whole` is in some box."""
    return not subtract_all((whole,), boxes)


def covers_exactly(boxes: Iterable[Box], whole: Box) -> bool:
    """Whether every element of `whole` is in exactly one box, and the boxes hold nothing else."""
    found = tuple(boxes)
    return covers(found, whole) and volume(found) == box_volume(whole)


def union(boxes: Iterable[Box]) -> tuple[Box, ...]:
    """The same elements as disjoint boxes in one normal form: equal sets give equal tuples.

    Cut into slabs along the first dim, each slab in normal form; neighbours with one cross-section
    are merged. Boxes come out in row-major order.
    """
    found = [box for box in boxes if box_volume(box)]
    if not found or not found[0]:
        return tuple(found[:1])
    bounds = sorted({bound for box in found for bound in box[0]})
    slabs: list[tuple[Interval, tuple[Box, ...]]] = []
    for low, high in pairwise(bounds):
        section = union(box[1:] for box in found if box[0][0] <= low and high <= box[0][1])
        if section and slabs and slabs[-1][0][1] == low and slabs[-1][1] == section:
            slabs[-1] = ((slabs[-1][0][0], high), section)
        elif section:
            slabs.append(((low, high), section))
    return tuple((span, *rest) for span, section in slabs for rest in section)
