"""Devices in groups, each of which runs the whole model on its own samples: by order, node and kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from math import prod

from .planned_devices import PlannedDevice, PlannedDevices

MOST_GROUPINGS = 64
"""Of clusters with many kinds of nodes: the first, which cut all kinds alike."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Groups of device ids; each group is a pipeline, its devices share every layer."""

    groups: tuple[tuple[int, ...], ...]

    @property
    def name(self) -> str:
        """`2 x 4`, or `1 x 4 + 2 x 2`: so many groups of so many devices."""
        runs = [(size, len(list(run))) for size, run in groupby(map(len, self.groups))]
        return " + ".join(f"{count} x {size}" for size, count in runs)

    @property
    def is_even(self) -> bool:
        """Whether all groups have as many devices."""
        return len(set(map(len, self.groups))) == 1


def divisors(number: int) -> list[int]:
    """Ascending."""
    return [one for one in range(1, number + 1) if number % one == 0]


def even_groupings(ids: Sequence[int]) -> Iterator[Grouping]:
    """As many devices in each group, in the order of their ids, from single devices to all together."""
    for size in divisors(len(ids)):
        yield Grouping(tuple(tuple(ids[low : low + size]) for low in range(0, len(ids), size)))


def groupings(devices: PlannedDevices) -> list[Grouping]:
    """All even ones, and those whose groups stay inside one node and one kind of device.

    Of the latter each kind of run (a node's devices that are alike) is cut in groups of a size of its own
    that divides it, so that groups of quick devices may have another size than those of slow ones; also
    whole nodes. No grouping twice, in a fixed order.
    """
    found = list(even_groupings(devices.ids))
    found.append(Grouping(tuple(_by_node(devices))))
    found += _cut_runs(_runs(devices))
    return list(dict.fromkeys(found))


def _by_node(devices: PlannedDevices) -> Iterator[tuple[int, ...]]:
    for _, group in groupby(devices.devices, key=lambda device: device.slot.node):
        yield tuple(device.id for device in group)


def _runs(devices: PlannedDevices) -> list[tuple[PlannedDevice, ...]]:
    """Devices of a node that follow each other and are alike."""
    key = groupby(devices.devices, key=lambda device: (device.slot.node, devices.kinds.index(device.kind)))
    return [tuple(run) for _, run in key]


def _cut_runs(runs: Sequence[tuple[PlannedDevice, ...]]) -> Iterator[Grouping]:
    kinds = list(dict.fromkeys((run[0].kind, len(run)) for run in runs))
    sizes = [divisors(length) for _, length in kinds]
    if prod(map(len, sizes)) > MOST_GROUPINGS:
        largest = max(max(each) for each in sizes)
        chosen: Iterator[Sequence[int]] = (
            [max(one for one in each if one <= most) for each in sizes] for most in divisors(largest)
        )
    else:
        chosen = product(*sizes)
    for cut in chosen:
        size_of = dict(zip(kinds, cut, strict=True))
        groups: list[tuple[int, ...]] = []
        for run in runs:
            ids, size = [device.id for device in run], size_of[run[0].kind, len(run)]
            groups += [tuple(ids[low : low + size]) for low in range(0, len(ids), size)]
        yield Grouping(tuple(groups))
