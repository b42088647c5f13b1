"""One side of a conversion: which device holds which rows, as sets of devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_

from ...annotations.annotation import Addend, Annotation, HeldIntervals, Shape
from ...layout.intervals import Intervals

DeviceSet = int
"""A set of devices: bit d stands for device d."""

Rows = tuple[Mapping[Intervals, DeviceSet], ...]
"""Per dim who holds which rows of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The tensor before, or after, a conversion.

    rows: per dim, who holds these rows of it. alternatives: the value is the sum over the addends of any
    one alternative; each addend is told by its holders. subgroups: the devices of a device's subgroup.
    replica: which of the equal copies a device has. everyone: all devices, those that hold nothing too.
    pending: whether any value is held as a sum that is still to be done.
    """

    held: Mapping[int, HeldIntervals]
    rows: Rows
    alternatives: tuple[tuple[DeviceSet, ...], ...]
    subgroups: Mapping[int, DeviceSet]
    replica: Mapping[int, int]
    everyone: DeviceSet
    pending: bool


@lru_cache(maxsize=4096)
def side_of(annotation: Annotation, shape: Shape) -> Side:
    """The side that an annotation stands for; AnnotationError where it doesn't fit the shape."""
    subgroups: dict[int, DeviceSet] = {}
    for group in annotation.groups:
        subgroups.update(dict.fromkeys(group.devices, devices_of(group.devices)))
    return make_side(annotation.intervals(shape), annotation.addends(), subgroups, len(shape))


def make_side(
    held: Mapping[int, HeldIntervals],
    addends: Mapping[int, Addend],
    subgroups: Mapping[int, DeviceSet],
    dims: int,
) -> Side:
    """A side from what each device holds."""
    alternatives, everyone = _alternatives(addends), devices_of(held)
    replica: dict[int, int] = {}
    copies: dict[tuple[HeldIntervals, int, int], list[int]] = {}
    for device, own in held.items():
        addend = addends[device]
        alike = copies.setdefault((own, addend.alternative, addend.index), [])
        replica[device] = len(alike)
        alike.append(device)
    rows = rows_of(((own, devices_of(alike)) for (own, _, _), alike in copies.items()), dims)
    pending = alternatives != ((everyone,),)
    return Side(held, rows, alternatives, subgroups, replica, everyone, pending)


def rows_of(pieces: Iterable[tuple[HeldIntervals, DeviceSet]], dims: int) -> Rows:
    """Per dim who holds which rows; a piece without elements is held by nobody."""
    rows: list[dict[Intervals, DeviceSet]] = [{} for _ in range(dims)]
    for own, devices in pieces:
        if all(own):
            for found, intervals in zip(rows, own, strict=True):
                found[intervals] = found.get(intervals, 0) | devices
    return tuple(rows)


def _alternatives(addends: Mapping[int, Addend]) -> tuple[tuple[DeviceSet, ...], ...]:
    holders: dict[tuple[int, int], DeviceSet] = {}
    for device, addend in addends.items():
        place = (addend.alternative, addend.index)
        holders[place] = holders.get(place, 0) | 1 << device
    found: dict[int, list[DeviceSet]] = {}
    for alternative, index in sorted(holders):
        found.setdefault(alternative, []).append(holders[alternative, index])
    return tuple(map(tuple, found.values()))


def devices_of(devices: Iterable[int]) -> DeviceSet:
    """The set of these devices."""
    return united(1 << device for device in devices)


def united(sets: Iterable[DeviceSet]) -> DeviceSet:
    """The devices of all sets."""
    return reduce(or_, sets, 0)


def met(sets: Iterable[DeviceSet]) -> list[DeviceSet]:
    """Sets that have devices in common as one."""
    joined: list[DeviceSet] = []
    for devices in dict.fromkeys(sets):
        apart = []
        for other in joined:
            if other & devices:
                devices |= other
            else:
                apart.append(other)
        joined = [*apart, devices]
    return joined


@lru_cache(maxsize=65536)
def members(devices: DeviceSet) -> tuple[int, ...]:
    """The devices of a set, ascending."""
    found = []
    while devices:
        lowest = devices & -devices
        found.append(lowest.bit_length() - 1)
        devices ^= lowest
    return tuple(found)
