"""One side of a conversion: which device holds which rows, as sets of devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_

from ...annotations.annotation import Addend, Annotation, Shape
from ...annotations.region import Intervals

Devices = int
"""A set of devices: bit d stands for device d."""

Held = tuple[Intervals, ...]
"""The rows per dim that a device holds; its tensor is their product, in this order."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The tensor before, or after, a conversion.

    rows: per dim, who holds these rows of it. alternatives: the value is the sum over the addends of any
    one alternative; each addend is told by its holders. subgroups: the devices of a device's subgroup.
    replica: which of the equal copies a device has. everyone: all devices, those that hold nothing too.
    pending: whether any value is held as a sum that is still to be done.
    """

    held: Mapping[int, Held]
    rows: tuple[Mapping[Intervals, Devices], ...]
    alternatives: tuple[tuple[Devices, ...], ...]
    subgroups: Mapping[int, Devices]
    replica: Mapping[int, int]
    everyone: Devices
    pending: bool


@lru_cache(maxsize=4096)
def side_of(annotation: Annotation, shape: Shape) -> Side:
    """The side that an annotation stands for; AnnotationError where it doesn't fit the shape."""
    groups = [(devices_of(group), group) for group in annotation.groups]
    subgroups = {device: together for together, group in groups for device in group}
    return make_side(annotation.intervals(shape), annotation.addends(), subgroups, len(shape))


def make_side(
    held: Mapping[int, Held], addends: Mapping[int, Addend], subgroups: Mapping[int, Devices], dims: int
) -> Side:
    """A side from what each device holds."""
    rows: list[dict[Intervals, Devices]] = [{} for _ in range(dims)]
    replica: dict[int, int] = {}
    copies: dict[tuple[Held, Addend], int] = {}
    for device, own in held.items():
        copy = (own, addends[device])
        replica[device] = copies[copy] = copies.get(copy, -1) + 1
        if all(own):
            for dim, intervals in enumerate(own):
                rows[dim][intervals] = rows[dim].get(intervals, 0) | 1 << device
    alternatives, everyone = _alternatives(addends), devices_of(held)
    pending = alternatives != ((everyone,),)
    return Side(held, tuple(rows), alternatives, subgroups, replica, everyone, pending)


def _alternatives(addends: Mapping[int, Addend]) -> tuple[tuple[Devices, ...], ...]:
    found: dict[int, dict[int, Devices]] = {}
    for device, addend in addends.items():
        holders = found.setdefault(addend.alternative, {})
        holders[addend.index] = holders.get(addend.index, 0) | 1 << device
    return tuple(
        tuple(holders for _, holders in sorted(found[alternative].items())) for alternative in sorted(found)
    )


def devices_of(devices: Iterable[int]) -> Devices:
    """The set of these devices."""
    return reduce(or_, (1 << device for device in devices), 0)


@lru_cache(maxsize=65536)
def members(devices: Devices) -> tuple[int, ...]:
    """The devices of a set, ascending."""
    found = []
    while devices:
        lowest = devices & -devices
        found.append(lowest.bit_length() - 1)
        devices ^= lowest
    return tuple(found)
