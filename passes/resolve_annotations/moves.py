"""Moves: what a step of a plan does, before it is written out for each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from ...annotations.annotation import HeldIntervals
from ...base.comm_plan import Box, Combine, CommKind
from .cells import Blocks, block_size, local_boxes


class Transfer(NamedTuple):
    """Blocks that go from one device to another, or stay where they are; size in elements."""

    sender: int
    receiver: int
    blocks: Blocks
    size: int


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor of one dim that has some blocks one after the other."""

    starts: Mapping[Blocks, int]
    length: int

    @classmethod
    def of(cls, all_blocks: Sequence[Blocks]) -> Packed:
        """The blocks in this order, each of them once."""
        starts: dict[Blocks, int] = {}
        length = 0
        for blocks in all_blocks:
            if blocks not in starts:
                starts[blocks] = length
                length += sum(map(block_size, blocks))
        return cls(starts, length)


Local = HeldIntervals | Packed
"""How the tensor of one device is laid out: a product of rows, or packed blocks."""


def view_of(local: Local) -> tuple[int, ...]:
    """Shape of a local tensor."""
    if isinstance(local, Packed):
        return (local.length,)
    return tuple([sum([high - low for low, high in rows]) for rows in local])


def boxes_in(local: Local, blocks: Blocks) -> tuple[Box, ...]:
    """Where blocks lie in a local tensor, row-major; as many boxes, in one order, wherever they lie."""
    if not isinstance(local, Packed):
        if len(blocks) == 1:
            return local_boxes(local, blocks[0])
        return tuple(box for block in blocks for box in local_boxes(local, block))
    start = local.starts[blocks]
    found: list[Box] = []
    for block in blocks:
        for box in local_boxes(block, block):
            size = prod([high - low for low, high in box])
            found.append(((start, start + size),))
            start += size
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeMove:
    """Blocks that move at once. A receiver joins them in the order of `transfers`.

    source, target: the tensors before and after. kept: devices whose tensor stays as it is. together: the
    name of the one step that all devices take part in; None: those that meet have a step of their own.
    """

    transfers: Sequence[Transfer]
    combine: Combine
    source: Mapping[int, Local]
    target: Mapping[int, Local]
    kept: frozenset[int]
    together: CommKind | None = None


@dataclass(frozen=True, slots=True)
class ReductionMove:
    """All-reduces of whole local tensors, one in each group; elements per group."""

    groups: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]


StepMove = ExchangeMove | ReductionMove
