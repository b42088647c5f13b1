"""Boxes of one tensor laid over each other: cells that no box cuts, each with the boxes that it is in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ..base.comm_plan import Box, Interval

Members = tuple[int, ...]
"""Positions of boxes in their sequence, ascending."""
Cells = list[tuple[Box, Members]]


def overlay(boxes: Sequence[Box]) -> Cells:
    """Every cell that some box holds, row-major by its corner. No box is empty; all have the same dims."""
    return _cells(boxes, tuple(range(len(boxes))), 0, {})


def _cells(boxes: Sequence[Box], among: Members, dim: int, known: dict[tuple[Members, int], Cells]) -> Cells:
    rest = boxes[among[0]][dim:]
    if all(boxes[index][dim:] == rest for index in among):
        return [(rest, among)]
    if (among, dim) not in known:
        known[among, dim] = [
            ((interval, *rest), inside)
            for interval, here in _segments(boxes, among, dim)
            for rest, inside in _cells(boxes, here, dim + 1, known)
        ]
    return known[among, dim]


def _segments(boxes: Sequence[Box], among: Members, dim: int) -> Iterator[tuple[Interval, Members]]:
    """One dim between all ends of intervals, and the boxes that each part is in."""
    starts: dict[int, list[int]] = {}
    stops: dict[int, list[int]] = {}
    for index in among:
        low, high = boxes[index][dim]
        starts.setdefault(low, []).append(index)
        stops.setdefault(high, []).append(index)
    active: set[int] = set()
    for low, high in pairwise(sorted(starts.keys() | stops.keys())):
        active.difference_update(stops.get(low, ()))
        active.update(starts.get(low, ()))
        if active:
            yield (low, high), tuple(sorted(active))
