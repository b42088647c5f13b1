"""Where elements of a switch plan lie in a rank's tensors.

Of a move of a class: `parts_between(each, move.low, move.high)` gives the pieces of parameters in it, in
order. For each of these and each kind of the class, in order: the source reads

    read_places(tensor, part_places(part, low, high, shard, source_kind(shard, kind)), dtype)

where tensor is its own of that kind (a local tensor or a run: `state_elements.is_run`), and the target writes
the same elements, in the same order, with

    write_places(tensor, part_places(part, low, high, shard, kind), flat)

The two shards, tensors and views may differ; the number and order of elements does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from math import prod
from typing import TYPE_CHECKING

from ...base.comm_plan import Box
from ...errors import InternalError
from ..boxes import flat_part, full_box, slices, volume
from ..program import Shard
from ..switch_plan import StatePart, SwitchClass
from .state_elements import StateExtent, is_run, pairs

if TYPE_CHECKING:
    import torch
    from torch import Tensor

View = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Elements of a tensor: its flat elements from `start` on, seen as `view`, there `box`, row-major."""

    start: int
    view: View
    box: Box


@dataclass(frozen=True, slots=True)
class _Region:
    """A box of the whole, and where its corner lies."""

    whole: Box
    start: int
    view: View
    corner: tuple[int, ...]


def parts_between(each: SwitchClass, low: int, high: int) -> Iterator[tuple[StatePart, int, int]]:
    """The elements [low, high) of a class as elements of its parts, counted in each part from its first."""
    start = 0
    for part in each.parts:
        size = volume(part.boxes)
        if max(low, start) < min(high, start + size):
            yield part, max(low - start, 0), min(high - start, size)
        start += size


def part_places(part: StatePart, low: int, high: int, shard: Shard, kind: str) -> tuple[TensorPlace, ...]:
    """Where the elements [low, high) of a part lie in a rank's tensor of a kind, in their order."""
    regions = _regions(shard, is_run(shard, kind))
    return tuple(
        _place(box, regions, shard.name)
        for mine in flat_part(part.boxes, low, high)
        for box in in_view(mine, part.view, shard.whole_view)
    )


def read_places(tensor: Tensor, places: Sequence[TensorPlace], dtype: torch.dtype) -> Tensor:
    """The elements at these places, flat, in a type; may share memory with the tensor."""
    import torch  # late: plans are made without

    rows = [place_in(tensor, place).reshape(-1) for place in places]
    row = rows[0] if len(rows) == 1 else torch.cat([tensor.new_empty(0), *rows])
    return row.to(dtype)


def write_places(tensor: Tensor, places: Sequence[TensorPlace], flat: Tensor) -> None:
    """Put flat elements at these places of a contiguous tensor, cast to its type."""
    start = 0
    for place in places:
        target = place_in(tensor, place)
        target.copy_(flat[start : start + target.numel()].view(target.shape))
        start += target.numel()


def place_in(tensor: Tensor, place: TensorPlace) -> Tensor:
    """The elements at a place of a contiguous tensor, in its memory; of any other, to be read only."""
    row = tensor.reshape(-1)[place.start : place.start + prod(place.view)]
    return row.view(place.view)[slices(place.box)]


@lru_cache(maxsize=4096)
def _regions(shard: Shard, run: bool) -> tuple[_Region, ...]:
    if not run:
        return tuple(
            _Region(whole, 0, shard.view, tuple(low for low, _ in local))
            for whole, local in pairs(shard, StateExtent.ALL)
        )
    found, start = [], 0
    for whole, _ in pairs(shard, StateExtent.OWNED):
        extents = tuple(high - low for low, high in whole)
        found.append(_Region(whole, start, extents, (0,) * len(extents)))
        start += prod(extents)
    return tuple(found)


def _place(box: Box, regions: Sequence[_Region], name: str) -> TensorPlace:
    for region in regions:
        if all(a <= low and high <= b for (low, high), (a, b) in zip(box, region.whole, strict=True)):
            moved = zip(box, region.whole, region.corner, strict=True)
            local = tuple((low - a + at, high - a + at) for (low, high), (a, _), at in moved)
            return TensorPlace(region.start, region.view, local)
    raise InternalError(
        f"box {box} of {name} is not in one place of this rank: {[one.whole for one in regions]}"
    )


def common_view(views: Sequence[View]) -> View:
    """A factored view of one whole that is as fine as each of these; flat where they have no such."""
    if all(view == views[0] for view in views):
        return views[0]
    strides = sorted({stride for view in views for stride in _strides(view)}, reverse=True)
    if any(inner == 0 or outer % inner for outer, inner in pairwise(strides)):
        return (prod(views[0]),)
    return tuple(outer // inner for outer, inner in pairwise(strides))


def _strides(view: View) -> list[int]:
    """Elements from each factor on, down to 1: what one step of the factor before it passes over."""
    return [prod(view[at:]) for at in range(len(view) + 1)]


@lru_cache(maxsize=65536)
def in_view(box: Box, view: View, into: View) -> tuple[Box, ...]:
    """The elements of a box of `view`, in order, as boxes of another view of the same whole."""
    if view == into:
        return (box,)
    first = next(
        (at for at, (a, b) in enumerate(zip(view, into, strict=False)) if a != b), min(len(view), len(into))
    )
    most = min(len(view), len(into)) - first
    after = next((at for at in range(most) if view[-1 - at] != into[-1 - at]), most)
    end = len(view) - after
    head, tail = box[:first], box[end:]
    inner = into[first : len(into) - after]
    middle = tuple(_of_runs(box[first:end], view[first:end], inner))
    if len(middle) == 1:
        return ((*head, *middle[0], *tail),)
    rows = product(*(range(low, high) for low, high in head))
    return tuple((*((at, at + 1) for at in row), *each, *tail) for row in rows for each in middle)


def _of_runs(box: Box, view: View, into: View) -> Iterator[Box]:
    """As `in_view`, by the contiguous runs that a box is made of."""
    whole = full_box(into)
    for low, high in _runs(box, view):
        yield from flat_part((whole,), low, high)


def _runs(box: Box, view: View) -> Iterator[tuple[int, int]]:
    """Flat elements [low, high) of the whole that a box is made of, ascending."""
    if not view:
        yield 0, 1
        return
    inner = len(view) - 1
    while inner > 0 and box[inner] == (0, view[inner]):
        inner -= 1  # what is whole behind a dim lies in its runs
    size = prod(view[inner + 1 :])
    low, high = box[inner]
    for at in product(*(range(*ends) for ends in box[:inner])):
        start = 0
        for index, length in zip(at, view[:inner], strict=True):
            start = start * length + index
        start *= view[inner]
        yield (start + low) * size, (start + high) * size
