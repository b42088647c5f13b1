"""A tensor by its type alone, and how results lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from ...base.dtypes import ElementType

Shape = tuple[int, ...]
PlainTyped = tuple[Shape, ElementType, Shape]
"""(shape, element type, strides)."""

NEW = -1


@dataclass(frozen=True)
class Outline:
    """A tensor without data. memory: number of the operand whose memory it is in, NEW for one of its own."""

    shape: Shape
    dtype: ElementType
    strides: Shape
    memory: int = NEW

    @cached_property
    def numel(self) -> int:
        """How many elements it has."""
        return prod(self.shape)

    @property
    def dim(self) -> int:
        """How many dims it has."""
        return len(self.shape)

    @cached_property
    def is_contiguous(self) -> bool:
        """Whether its elements lie side by side in the order of its dims."""
        usual = in_order(self.shape, range(len(self.shape)))
        return not self.numel or all(
            step == wanted or size == 1
            for size, step, wanted in zip(self.shape, self.strides, usual, strict=True)
        )

    @property
    def is_usual(self) -> bool:
        """Whether it does not lie with its channels last, as images may."""
        return self.is_contiguous or self.dim < 4 or self.strides[-1] == 1 < self.strides[1]

    @property
    def typed(self) -> PlainTyped:
        return self.shape, self.dtype, self.strides

    @property
    def size_bytes(self) -> int:
        """Of the smallest memory that it lies in."""
        if not self.numel:
            return 0
        last = sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))
        return (1 + last) * self.dtype.itemsize

    def viewed(self, shape: Sequence[int], strides: Sequence[int]) -> Outline:
        """Another look at the same memory."""
        return replace(self, shape=tuple(shape), strides=tuple(strides))


def made(shape: Sequence[int], dtype: ElementType, strides: Sequence[int] | None = None) -> Outline:
    """A new tensor, its elements side by side unless strides are given."""
    sizes = tuple(shape)
    return Outline(sizes, dtype, in_order(sizes, range(len(sizes))) if strides is None else tuple(strides))


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The common shape; None where there is none."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    found = []
    for sizes in zip(*padded, strict=True):
        others = {size for size in sizes if size != 1}
        if len(others) > 1:
            return None
        found.append(others.pop() if others else 1)
    return tuple(found)


def in_order(shape: Shape, order: Sequence[int]) -> Shape:
    """Strides of a dense tensor whose dims lie in this order, the outermost first."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def strides_of_each(shape: Shape, operands: Sequence[Outline]) -> Shape:
    """As PyTorch lays out what it computes element by element: in the order of the operands' strides."""
    if all(each.is_contiguous for each in operands):
        return in_order(shape, range(len(shape)))
    first = operands[0].strides
    if all(each.shape == shape and each.strides == first for each in operands) and _is_dense(shape, first):
        return first
    steps = [_expanded(shape, each) for each in operands]
    order = list(reversed(range(len(shape))))
    for last in range(1, len(order)):
        place = last
        for before in range(last - 1, -1, -1):
            turned = _compared(shape, steps, order[before], order[place])
            if turned > 0:
                order[before], order[place] = order[place], order[before]
                place = before
            elif turned < 0:
                break
    return in_order(shape, list(reversed(order)))


def _compared(shape: Shape, steps: Sequence[Shape], inner: int, outer: int) -> int:
    """Above 0 where the dims must change places, below where they must not: the first operand that tells."""
    for step in steps:
        if not step[inner] or not step[outer]:
            continue
        if step[inner] != step[outer]:
            return -1 if step[inner] < step[outer] else 1
        if shape[inner] > shape[outer]:
            return 1
    return 0


def _expanded(shape: Shape, operand: Outline) -> Shape:
    missing = len(shape) - operand.dim
    own = zip(operand.shape, operand.strides, shape[missing:], strict=True)
    return (0,) * missing + tuple(0 if size == 1 and size != whole else step for size, step, whole in own)


def _is_dense(shape: Shape, strides: Shape) -> bool:
    """Whether every element has a place of its own, and no place is empty."""
    step = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True)):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True
