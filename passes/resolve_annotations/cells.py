"""Cells: elements that the same devices hold before a conversion, and the same devices need after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, product
from math import prod
from typing import NamedTuple

from ...annotations.annotation import HeldIntervals
from ...annotations.split import consecutive, even_lengths
from ...base.comm_plan import Box
from ...layout.intervals import Intervals, at_local, placed, union
from .sides import DeviceSet, Rows, Side

CellBlock = tuple[Intervals, ...]
"""A product of rows, one choice of intervals per dim."""

Blocks = tuple[CellBlock, ...]


class Cell(NamedTuple):
    """Some blocks, who holds them before, who needs them after, and how many elements they are."""

    blocks: Blocks
    holders: DeviceSet
    needers: DeviceSet
    size: int


class _Rows(NamedTuple):
    holders: DeviceSet
    needers: DeviceSet
    intervals: Intervals
    length: int


class Product(NamedTuple):
    """A block, and who holds and needs it."""

    holders: DeviceSet
    needers: DeviceSet
    block: CellBlock
    size: int


def products_of(before: Rows, after: Rows, everyone: tuple[DeviceSet, DeviceSet]) -> list[Product]:
    """All elements that are held and needed, in order, as one block for each choice of rows per dim.

    Each dim is cut where either side cuts it, and rows with the same devices stay together, so that the
    number of blocks depends on the cuts and not on lengths or devices.
    """
    found = [Product(*everyone, (), 1)]
    for first, second in zip(before, after, strict=True):
        parts = _partition(first, second)
        found = [
            Product(
                holders & rows.holders, needers & rows.needers, (*block, rows.intervals), size * rows.length
            )
            for holders, needers, block, size in found
            for rows in parts
            if holders & rows.holders and needers & rows.needers
        ]
    return found


def cells_of(source: Side, target: Side) -> list[Cell]:
    """The cells of a conversion, in the order of the tensor's elements."""
    together: dict[tuple[DeviceSet, DeviceSet], list[Product]] = {}
    for each in products_of(source.rows, target.rows, (source.everyone, target.everyone)):
        together.setdefault((each.holders, each.needers), []).append(each)
    return [
        Cell(joined([each.block for each in several]), *parties, sum([each.size for each in several]))
        for parties, several in together.items()
    ]


def _partition(before: Mapping[Intervals, DeviceSet], after: Mapping[Intervals, DeviceSet]) -> list[_Rows]:
    """The rows of one dim, by who holds and who needs them."""
    bounds = sorted(
        {bound for side in (before, after) for rows in side for low_high in rows for bound in low_high}
    )
    place = {bound: index for index, bound in enumerate(bounds)}
    holders, needers = [0] * len(bounds), [0] * len(bounds)
    for side, marks in ((before, holders), (after, needers)):
        for rows, devices in side.items():
            for low, high in rows:
                for index in range(place[low], place[high]):
                    marks[index] |= devices
    together: dict[tuple[DeviceSet, DeviceSet], list[tuple[int, int]]] = {}
    for interval, held, needed in zip(pairwise(bounds), holders, needers, strict=False):
        if held and needed:
            together.setdefault((held, needed), []).append(interval)
    return [
        _Rows(held, needed, union(rows) if len(rows) > 1 else tuple(rows), sum(b - a for a, b in rows))
        for (held, needed), rows in together.items()
    ]


def joined(blocks: Sequence[CellBlock]) -> Blocks:
    """As few blocks as joining along one dim after the other gives."""
    if len(blocks) == 1:
        return tuple(blocks)
    for dim in reversed(range(len(blocks[0]))):
        rows: dict[tuple[CellBlock, CellBlock], list[tuple[int, int]]] = {}
        for block in blocks:
            rows.setdefault((block[:dim], block[dim + 1 :]), []).extend(block[dim])
        blocks = [(*head, union(found), *tail) for (head, tail), found in rows.items()]
    return tuple(blocks)


@lru_cache(maxsize=65536)
def block_size(block: CellBlock) -> int:
    """Elements of a block."""
    return prod([sum(high - low for low, high in rows) for rows in block])


@lru_cache(maxsize=65536)
def local_boxes(held: HeldIntervals, block: CellBlock) -> tuple[Box, ...]:
    """Where a block lies in the tensor of a device that holds all of it.

    One box for each choice of an interval per dim, row-major, so that two devices have as many boxes, of
    equal volumes, in the same order.
    """
    return tuple(product(*map(_placed, held, block)))


_placed = lru_cache(maxsize=65536)(placed)


def cut_blocks(blocks: Blocks, parts: int) -> list[Blocks]:
    """The blocks in `parts` parts of about equal size, some empty where there are too few rows."""
    found: list[list[CellBlock]] = [[] for _ in range(parts)]
    for block in blocks:
        dim, lengths = _longest(block, parts)
        if not block:
            found[0].append(block)
            continue
        for part, place in zip(found, consecutive(lengths), strict=True):
            if rows := at_local(block[dim], (place,)):
                part.append((*block[:dim], rows, *block[dim + 1 :]))
    return [tuple(part) for part in found]


def part_sizes(blocks: Blocks, parts: int) -> list[int]:
    """Elements of each part of `cut_blocks`."""
    if parts == 1:
        return [sum(map(block_size, blocks))]
    sizes = [0] * parts
    for block in blocks:
        dim, lengths = _longest(block, parts)
        rest = block_size((*block[:dim], *block[dim + 1 :]))
        for place, length in enumerate(lengths):
            sizes[place] += length * rest
    return sizes


def _longest(block: CellBlock, parts: int) -> tuple[int, tuple[int, ...]]:
    """The dim to cut, the first that has a row for each part, else the longest, and the lengths."""
    lengths = [sum(high - low for low, high in rows) for rows in block] or [1]
    dim = next((dim for dim, length in enumerate(lengths) if length >= parts), lengths.index(max(lengths)))
    return dim, even_lengths(lengths[dim], parts)
