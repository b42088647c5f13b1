"""Boxes as one flat run of elements, cut anywhere: how any number of elements is shared out evenly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...base.comm_plan import Box, box_volume


def flat_part(boxes: Iterable[Box], start: int, stop: int) -> tuple[Box, ...]:
    """Boxes of the elements [start, stop) of all boxes, one after the other, each row-major; in order."""
    found: list[Box] = []
    before = 0
    for box in boxes:
        size = box_volume(box)
        low, high = max(start - before, 0), min(stop - before, size)
        if low < high:
            found += _cut(box, low, high)
        before += size
    return tuple(found)


def _cut(box: Box, start: int, stop: int) -> Iterator[Box]:
    """The elements [start, stop) of one box: a part of its first row, whole rows, a part of its last."""
    if start == 0 and stop == box_volume(box):
        yield box
        return
    (low, _), rest = box[0], box[1:]
    inner = box_volume(rest)
    first, last = start // inner, stop // inner
    if first == last:
        yield from _in_row(low + first, rest, start - first * inner, stop - first * inner)
        return
    if start % inner:
        yield from _in_row(low + first, rest, start % inner, inner)
        first += 1
    if first < last:
        yield ((low + first, low + last), *rest)
    if stop % inner:
        yield from _in_row(low + last, rest, 0, stop % inner)


def _in_row(row: int, rest: Box, start: int, stop: int) -> Iterator[Box]:
    return (((row, row + 1), *box) for box in _cut(rest, start, stop))
