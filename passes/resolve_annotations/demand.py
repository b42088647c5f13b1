"""Demand: which addends each device has to receive, or has, for the elements of a cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ...annotations.annotation import HeldIntervals
from .cells import Cell, cells_of
from .sides import DeviceSet, Side, members, united

Sums = tuple[DeviceSet, ...]
"""Holders of each addend of a sum, in the order in which they are added."""


class Demand(NamedTuple):
    """Devices that need one thing, and the sums that make it, any one of which will do."""

    needers: DeviceSet
    sums: tuple[Sums, ...]


@dataclass(frozen=True, eq=False)
class Conversion:
    """From one side to another: the cells, and what is asked for in each of them.

    before, after: what the devices that take part hold. demands: per cell.
    """

    source: Side
    target: Side
    before: Mapping[int, HeldIntervals]
    after: Mapping[int, HeldIntervals]
    cells: Sequence[Cell]
    demands: Sequence[tuple[Demand, ...]]

    @cached_property
    def sums(self) -> bool:
        """Whether any of them asks for a sum."""
        each = (sums for demands in self.demands for demand in demands for sums in demand.sums)
        return self.source.pending and any(len(sums) > 1 for sums in each)

    @classmethod
    def between(cls, source: Side, target: Side) -> Conversion:
        """The conversion of a whole tensor."""
        cells = cells_of(source, target)
        demands = [_demands(source, target, cell) for cell in cells]
        return cls(source, target, source.held, target.held, cells, demands)

    @property
    def devices(self) -> DeviceSet:
        """All devices of the cells."""
        return united(cell.holders | cell.needers for cell in self.cells)

    def apart(self, sets: Sequence[DeviceSet]) -> list[Conversion]:
        """What each of these sets does; no cell has devices of two of them, and every device is in one."""
        place = {device: index for index, devices in enumerate(sets) for device in members(devices)}
        before, after = (_dealt_out(held, place, len(sets)) for held in (self.before, self.after))
        cells: list[list[Cell]] = [[] for _ in sets]
        demands: list[list[tuple[Demand, ...]]] = [[] for _ in sets]
        for cell, asked in zip(self.cells, self.demands, strict=True):
            index = place[cell.needers.bit_length() - 1]
            cells[index].append(cell)
            demands[index].append(asked)
        return [
            Conversion(self.source, self.target, *own)
            for own in zip(before, after, cells, demands, strict=True)
        ]


def _dealt_out(
    held: Mapping[int, HeldIntervals], place: Mapping[int, int], count: int
) -> list[dict[int, HeldIntervals]]:
    found: list[dict[int, HeldIntervals]] = [{} for _ in range(count)]
    for device, own in held.items():
        found[place[device]][device] = own
    return found


def fewest_to_receive(demand: Demand, device: int) -> Sums:
    """The sum for which a device has to receive least; equal ones: the first."""
    sums = demand.sums
    if len(sums) == 1:
        return sums[0]
    bit = 1 << device
    return min(sums, key=lambda addends: len(addends) - any(holders & bit for holders in addends))


def _demands(source: Side, target: Side, cell: Cell) -> tuple[Demand, ...]:
    if not source.pending:
        return (Demand(cell.needers, ((cell.holders,),)),)
    present = _present(source.alternatives, cell.holders)
    if not target.pending:
        return (Demand(cell.needers, present),)
    return tuple(
        demand
        for addends in _present(target.alternatives, cell.needers)
        for demand in _regrouped(present, addends, source.subgroups)
    )


def _present(alternatives: Sequence[Sums], devices: DeviceSet) -> tuple[Sums, ...]:
    """The alternatives that these devices hold; an addend that none of them holds is zero."""
    found = (tuple(holders & devices for holders in each if holders & devices) for each in alternatives)
    return tuple(each for each in found if each)


def _regrouped(
    present: Sequence[Sums], wanted: Sums, subgroups: Mapping[int, DeviceSet]
) -> tuple[Demand, ...]:
    """Each addend of the source becomes part of one wanted addend, where most of its holders are.

    A wanted addend that gets none is zero.
    """
    dealt = [_dealt(addends, wanted, subgroups) for addends in present]
    _, sums = max(dealt, key=lambda each: each[0])
    return tuple(Demand(needers, (own,)) for needers, own in zip(wanted, sums, strict=True))


def _dealt(addends: Sums, wanted: Sums, subgroups: Mapping[int, DeviceSet]) -> tuple[int, list[Sums]]:
    """(devices that keep what they have, addends per wanted addend); next best is the same subgroup."""
    sums: list[list[DeviceSet]] = [[] for _ in wanted]
    kept = 0
    for holders in addends:
        together = subgroups.get(holders.bit_length() - 1, 0)
        reuse = [
            ((holders & needers).bit_count(), together & needers != 0, -len(own))
            for needers, own in zip(wanted, sums, strict=True)
        ]
        place = reuse.index(max(reuse))
        sums[place].append(holders)
        kept += reuse[place][0]
    return kept, [tuple(each) for each in sums]
