"""Elements that two boxes of one tensor share, where each is a box of a view of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ....base.comm_plan import Box, box_volume
from ....program.boxes import slices

FEW = 64
"""Runs that are copied one by one."""
AT_ONCE = 1 << 20
"""Elements whose places are written down at a time, where there are more runs."""


@dataclass(frozen=True, slots=True)
class SharedRuns:
    """What of a box of one view lies in a box of another.

    source, target: the first element of each run, as the elements of each box are numbered, row-major;
    length: of each run. Runs ascend in both.
    """

    source: Tensor
    target: Tensor
    length: Tensor

    @property
    def needed(self) -> tuple[int, int]:
        """[low, high) of the source's elements; nothing outside of it is read."""
        if not len(self.source):
            return 0, 0
        return int(self.source[0]), int(self.source[-1] + self.length[-1])

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy flat elements. source: from `needed[0]` on."""
        starts = self.source - self.needed[0]
        for length in torch.unique(self.length).tolist():
            chosen = self.length == length
            _copy_runs(source, target, starts[chosen], self.target[chosen], length)


def _copy_runs(source: Tensor, target: Tensor, lows: Tensor, places: Tensor, length: int) -> None:
    if len(lows) <= FEW:
        for low, place in zip(lows.tolist(), places.tolist(), strict=True):
            target[place : place + length] = source[low : low + length]
        return
    inside = torch.arange(length)
    for some, where in zip(
        *(torch.split(each, max(1, AT_ONCE // length)) for each in (lows, places)), strict=True
    ):
        target[(where[:, None] + inside).flatten()] = source[(some[:, None] + inside).flatten()]


def shared_runs(view: tuple[int, ...], box: Box, other_view: tuple[int, ...], other: Box) -> SharedRuns:
    """What of `box`, the source, lies in `other`, the target."""
    (a, size_a), (b, size_b) = _runs(view, box), _runs(other_view, other)
    points = torch.unique(torch.cat([a, a + size_a, b, b + size_b]))
    lows, lengths = points[:-1], points[1:] - points[:-1]
    at_a, at_b = (torch.searchsorted(starts, lows, right=True) - 1 for starts in (a, b))
    both = (at_a >= 0) & (at_b >= 0)
    lows, lengths, at_a, at_b = lows[both], lengths[both], at_a[both], at_b[both]
    inside = (lows < a[at_a] + size_a) & (lows < b[at_b] + size_b)
    lows, lengths, at_a, at_b = lows[inside], lengths[inside], at_a[inside], at_b[inside]
    return SharedRuns(at_a * size_a + lows - a[at_a], at_b * size_b + lows - b[at_b], lengths)


def _runs(view: tuple[int, ...], box: Box) -> tuple[Tensor, int]:
    """Runs of elements that follow each other in the whole: their starts, ascending; and their length."""
    if not box_volume(box):
        return torch.empty(0, dtype=torch.int64), 0
    length, dim = 1, len(view) - 1
    while dim >= 0 and box[dim] == (0, view[dim]):
        length *= view[dim]
        dim -= 1
    if dim < 0:
        return torch.zeros(1, dtype=torch.int64), length
    low, high = box[dim]
    starts, step, size = torch.tensor([low * length]), view[dim] * length, (high - low) * length
    for outer in range(dim - 1, -1, -1):
        starts = (torch.arange(*box[outer])[:, None] * step + starts).flatten()
        step *= view[outer]
    return starts, size


def common_box(one: Box, other: Box) -> Box | None:
    """What two boxes of one view share; None where they share nothing."""
    found = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(one, other, strict=True))
    return found if all(low < high for low, high in found) else None


def place_in(box: Box, outer: Box) -> tuple[slice, ...]:
    """Where a box lies in one that holds it, as an index."""
    return slices(
        tuple((low - start, high - start) for (low, high), (start, _) in zip(box, outer, strict=True))
    )


def sizes_of(box: Box) -> list[int]:
    """The shape of a box."""
    return [high - low for low, high in box]
