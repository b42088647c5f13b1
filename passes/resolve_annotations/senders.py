"""Senders: which of the devices that hold a cell sends it to a device that needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...comm_plan import CostModel
from .sides import Devices, Side, devices_of, members


class Senders(Protocol):
    """A choice of senders."""

    def pick(self, holders: Devices, receiver: int, size: int) -> int:
        """One of the holders; `receiver` does not hold it itself."""


@dataclass(slots=True)
class ByReplica:
    """The copy of the receiver's own subgroup, else the copy with the receiver's replica number.

    Ranks that hold one replica together so stay together, and receivers spread over the copies.
    """

    source: Side
    target: Side
    near: dict[int, Devices]

    def pick(self, holders: Devices, receiver: int, size: int) -> int:
        """See Senders."""
        if holders & (holders - 1) == 0:
            return holders.bit_length() - 1
        holders = holders & self.near.get(receiver, 0) or holders
        holders = holders & self.source.subgroups.get(receiver, 0) or holders
        own = self.source.replica.get(receiver)
        place = self.target.replica.get(receiver, 0) if own is None else own
        copies = members(holders)
        return copies[place % len(copies)]


@dataclass(slots=True)
class ByLoad:
    """The copy that has sent least so far. sent: at first what devices send that nobody else has."""

    near: dict[int, Devices]
    sent: dict[int, int]

    def pick(self, holders: Devices, receiver: int, size: int) -> int:
        """See Senders."""
        if holders & (holders - 1) == 0:
            return holders.bit_length() - 1
        copies = members(holders & self.near.get(receiver, 0) or holders)
        sender = min(copies, key=lambda copy: self.sent.get(copy, 0))
        self.sent[sender] = self.sent.get(sender, 0) + size
        return sender


def near_devices(cost: CostModel, devices: Devices) -> dict[int, Devices]:
    """The devices that each device reaches best; nothing where all are alike, by the last of them."""
    if not devices or cost.near(devices.bit_length() - 1) is None:
        return {}
    found = {device: cost.near(device) for device in members(devices)}
    return {device: devices_of(near) for device, near in found.items() if near is not None}
