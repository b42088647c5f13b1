"""Annotation: which device holds which boxes of one tensor, over a union of unequal device groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..comm_plan import Box, Interval
from .check import problems_of, problems_on
from .device import DeviceGroup
from .problems import refuse
from .region import Intervals, product_boxes, shift_intervals
from .split import consecutive, even_lengths
from .states import (
    DUPLICATE,
    PARTIAL,
    DistributedStates,
    Key,
    Placement,
    Unsplit,
)

Shape = tuple[int, ...]


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
    hetero_shares: length of the hetero dim per subgroup; None: even, the first ones longer.
    """

    groups: tuple[DeviceGroup, ...]
    states: tuple[DistributedStates, ...]
    hetero: Key | None = None
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
        return tuple(device for group in self.groups for device in group)

    @property
    def is_partial(self) -> bool:
        """Whether any device holds an addend instead of the value."""
        return self.hetero is PARTIAL or any(states.factor(PARTIAL) > 1 for states in self.states)

    def subgroup_of(self, device: int) -> int | None:
        """Index of the subgroup of a device, None if it holds nothing."""
        return next((u for u, group in enumerate(self.groups) if device in group.devices), None)

    def intervals(self, shape: Shape) -> dict[int, tuple[Intervals, ...]]:
        """Per device and dim the held rows, ascending; the local tensor is their product, in this order."""
        return dict(_held(self, tuple(shape)))

    def regions(self, shape: Shape) -> dict[int, tuple[Box, ...]]:
        """The boxes that each device holds, disjoint, row-major, () for a device that holds nothing."""
        return {device: product_boxes(dims) for device, dims in _held(self, tuple(shape))}

    def local_shape(self, shape: Shape, device: int) -> Shape:
        """Shape of a device's tensor."""
        dims = self.intervals(shape)[device]
        return tuple(sum(high - low for low, high in rows) for rows in dims)

    def addends(self) -> dict[int, Addend]:
        """Which addend each device holds; all equal where nothing is partial."""
        found: dict[int, Addend] = {}
        first = 0
        for u, (group, states) in enumerate(zip(self.groups, self.states, strict=True)):
            pending = states.factor(PARTIAL) > 1
            alternative = 1 + u if self.hetero is DUPLICATE and pending else 0
            for place, device in enumerate(group):
                own = states.coordinates(place).get(PARTIAL, 0)
                found[device] = Addend(alternative, first + own)
            first += states.factor(PARTIAL) if self.hetero is PARTIAL else 0
        return found

    def extent(self, u: int, dim: int, length: int) -> Interval:
        """The rows of a dim of this length that subgroup `u` holds as a whole."""
        if dim != self.hetero:
            return 0, length
        shares = self.hetero_shares or even_lengths(length, len(self.groups))
        return consecutive(shares)[u]

    def check(self, shape: Shape, *, leaf: bool = False) -> None:
        """Raises AnnotationError with everything that doesn't fit this shape; a leaf can't be partial."""
        refuse(problems_on(self, shape, leaf), f"{self} on shape {list(shape)}")

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
def _held(annotation: Annotation, shape: Shape) -> tuple[tuple[int, tuple[Intervals, ...]], ...]:
    annotation.check(shape)
    return tuple(
        (device, dims)
        for u, group in enumerate(annotation.groups)
        for device, dims in zip(group, _subgroup(annotation, u, shape), strict=True)
    )


def _subgroup(annotation: Annotation, u: int, shape: Shape) -> Iterator[tuple[Intervals, ...]]:
    states = annotation.states[u]
    pieces = [_pieces(annotation, u, dim, length) for dim, length in enumerate(shape)]
    for place in range(states.size):
        coordinates = states.coordinates(place)
        yield tuple(rows[coordinates.get(dim, 0)] for dim, rows in enumerate(pieces))


def _pieces(annotation: Annotation, u: int, dim: int, length: int) -> tuple[Intervals, ...]:
    low, high = annotation.extent(u, dim, length)
    split = annotation.states[u].split_of(dim)
    if split is None:
        return (((low, high),) if low < high else (),)
    return tuple(shift_intervals(rows, low) for rows in split.pieces(high - low))
