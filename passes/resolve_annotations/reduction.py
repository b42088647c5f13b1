"""All-reduce: where all holders of a sum hold the same rows, and all of them need it."""

from __future__ import annotations

from math import prod

from .demand import Conversion
from .moves import ReductionMove, view_of
from .sides import DeviceSet, members


def all_reduction(conversion: Conversion) -> ReductionMove | str:
    """One all-reduce for each set of copies of the addends; the reason where that doesn't fit.

    Where all holders of the addends of a cell have the same rows, they meet in every cell of these rows, so
    that a device is in one group only.
    """
    devices = conversion.devices
    source, target = conversion.before, conversion.after
    if not conversion.sums or conversion.target.pending:
        return "no sum is asked for"
    for device in members(devices):
        if source.get(device) != target.get(device):
            return f"device {device} holds other rows before than after"
    groups: dict[tuple[int, ...], int] = {}
    for demands in conversion.demands:
        for sums in demands[0].sums:
            together = _together(sums)
            if isinstance(together, str):
                return together
            volume = prod(view_of(source[together[0][0]]))
            if len({source[device] for group in together for device in group}) > 1:
                return "the addends of a sum have other rows around them"
            for group in together:
                if len(group) > 1:
                    groups[group] = volume
    return ReductionMove(tuple(groups), tuple(groups.values()))


def _together(sums: tuple[DeviceSet, ...]) -> list[tuple[int, ...]] | str:
    """Groups with one holder of each addend."""
    copies = [members(holders) for holders in sums]
    if len({len(each) for each in copies}) > 1:
        return "one addend has more copies than another"
    return [tuple(sorted(group)) for group in zip(*copies, strict=True)]
