"""Annotation: which device holds which boxes of one tensor, over a union of unequal device groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from ..base.comm_plan import Box, Interval
from ..layout.intervals import Intervals, shifted
from .check import problems_of, problems_on
from .device import DeviceGroup
from .problems import refuse
from .split import consecutive, dealt, even_lengths
from .states import (
    DUPLICATE,
    PARTIAL,
    DistributedStates,
    Placement,
    StateKey,
    Unsplit,
)

Shape = tuple[int, ...]

HeldIntervals = tuple[Intervals, ...]
"""The rows per dim that a device holds; its tensor is their product, in this order."""


@dataclass(frozen=True, slots=True)
class Addend:
    """Which addend of the value a device holds.

    Devices of one alternative and one index hold equal copies where their boxes overlap. The value
    is the sum over the indices of any one alternative; what no device of an index holds is zero there.
    """

    alternative: int
    index: int


@dataclass(frozen=True, slots=True)
class Annotation:
    """Subgroups of devices, each with its states, and the relation between the subgroups.

    hetero: DUPLICATE, every subgroup has the whole value; PARTIAL, the value is the sum over the
    subgroups; a dim, each subgroup has its share of that dim; None, there is one subgroup.
    hetero_shares: weight of each subgroup in the hetero dim; None: even, the first ones longer.
    """

    groups: tuple[DeviceGroup, ...]
    states: tuple[DistributedStates, ...]
    hetero: StateKey | None = None
    hetero_shares: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        refuse(problems_of(self), str(self))

    @classmethod
    def single(cls, devices: Sequence[int], *placements: Placement) -> Annotation:
        """One group of devices; no placements: a copy on each device."""
        states = DistributedStates(placements)
        if not placements and len(devices) > 1:
            states = DistributedStates.of({DUPLICATE: len(devices)})
        return cls((DeviceGroup(tuple(devices)),), (states,))

    @property
    def devices(self) -> tuple[int, ...]:
        """All devices, in the order of groups."""
        return tuple([device for group in self.groups for device in group.devices])

    @property
    def is_partial(self) -> bool:
        """Whether any device holds an addend instead of the value."""
        return self.hetero is PARTIAL or any(states.factor(PARTIAL) > 1 for states in self.states)

    def subgroup_of(self, device: int) -> int | None:
        """Index of the subgroup of a device, None if it holds nothing."""
        return next((u for u, group in enumerate(self.groups) if device in group.devices), None)

    def intervals(self, shape: Shape) -> dict[int, HeldIntervals]:
        """Per device and dim the held rows, ascending; the local tensor is their product, in this order."""
        return dict(_held(self, tuple(shape)))

    def regions(self, shape: Shape) -> dict[int, tuple[Box, ...]]:
        """The boxes that each device holds, disjoint, row-major, () for a device that holds nothing."""
        return {device: tuple(product(*dims)) for device, dims in _held(self, tuple(shape))}

    def local_shape(self, shape: Shape, device: int) -> Shape:
        """Shape of a device's tensor."""
        dims = self.intervals(shape)[device]
        return tuple(sum(high - low for low, high in rows) for rows in dims)

    def addends(self) -> dict[int, Addend]:
        """Which addend each device holds; all equal where nothing is partial."""
        if not self.is_partial:
            return dict.fromkeys(self.devices, Addend(0, 0))
        found: dict[int, Addend] = {}
        first = 0
        for u, (group, states) in enumerate(zip(self.groups, self.states, strict=True)):
            parts = states.factor(PARTIAL)
            alternative = 1 + u if self.hetero is DUPLICATE and parts > 1 else 0
            addends = [Addend(alternative, first + own) for own in range(parts)]
            if parts == 1:
                found.update(dict.fromkeys(group, addends[0]))
            else:
                found.update(zip(group, map(addends.__getitem__, states.places(PARTIAL)), strict=True))
            first += parts if self.hetero is PARTIAL else 0
        return found

    def extent(self, u: int, dim: int, length: int) -> Interval:
        """The rows of a dim of this length that subgroup `u` holds as a whole."""
        return self.extents(dim, length)[u]

    def extents(self, dim: int, length: int) -> Intervals:
        """`extent` of every subgroup."""
        if dim != self.hetero:
            return ((0, length),) * len(self.groups)
        if self.hetero_shares is None:
            return consecutive(even_lengths(length, len(self.groups)))
        return consecutive(dealt(length, self.hetero_shares))

    def check(self, shape: Shape, *, leaf: bool = False) -> None:
        """Raises AnnotationError with everything that doesn't fit this shape; a leaf can't be partial."""
        if problems := tuple(problems_on(self, shape, leaf)):
            refuse(problems, f"{self} on shape {list(shape)}")

    def __str__(self) -> str:
        groups = " | ".join(map(str, self.groups))
        states = " | ".join(map(str, self.states))
        text = f"[{groups}]  <{states}>"
        if self.hetero is None:
            return text
        key = self.hetero.value if isinstance(self.hetero, Unsplit) else self.hetero
        shares = "" if self.hetero_shares is None else f"({','.join(map(str, self.hetero_shares))})"
        return f"{text}  hetero={key}{shares}"


@lru_cache(maxsize=4096)
def _held(annotation: Annotation, shape: Shape) -> tuple[tuple[int, HeldIntervals], ...]:
    annotation.check(shape)
    extents = [annotation.extents(dim, length) for dim, length in enumerate(shape)]
    per_subgroup = zip(*extents, strict=True) if extents else ((),) * len(annotation.groups)
    found: list[tuple[int, HeldIntervals]] = []
    for group, states, spans in zip(annotation.groups, annotation.states, per_subgroup, strict=True):
        found += zip(group.devices, _subgroup(states, spans), strict=True)
    return tuple(found)


@lru_cache(maxsize=4096)
def _subgroup(states: DistributedStates, extents: Intervals) -> tuple[HeldIntervals, ...]:
    """What each device of a subgroup holds. extents: the rows per dim of them all."""
    if not extents:
        return ((),) * states.size
    columns = [_rows(states, dim, extent) for dim, extent in enumerate(extents)]
    return tuple(zip(*columns, strict=True))


@lru_cache(maxsize=4096)
def _rows(states: DistributedStates, dim: int, extent: Interval) -> tuple[Intervals, ...]:
    """The rows of one dim for each device of a subgroup."""
    low, high = extent
    split = states.split_of(dim)
    if split is None:
        return (((low, high),) if low < high else (),) * states.size
    pieces = split.pieces(high - low)
    if low:
        pieces = tuple(shifted(rows, low) for rows in pieces)
    return tuple(map(pieces.__getitem__, states.places(dim)))
