"""Senders: which of the devices that hold a cell sends it to a device that needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...base.comm_plan import CostModel
from .sides import DeviceSet, Side, devices_of, members


class Senders(Protocol):
    """A choice of senders."""

    def deal(self, holders: DeviceSet, receivers: DeviceSet, size: int) -> dict[int, DeviceSet]:
        """Whom each of the holders sends `size` elements; no receiver holds them itself."""


@dataclass(slots=True)
class ByReplica:
    """The copy of the receiver's own subgroup, else the copy with the receiver's replica number.

    Ranks that hold one replica together so stay together, and receivers spread over the copies.
    """

    source: Side
    target: Side
    near: dict[int, DeviceSet]

    def deal(self, holders: DeviceSet, receivers: DeviceSet, size: int) -> dict[int, DeviceSet]:
        """See Senders."""
        if only := _only(holders, receivers):
            return only
        found: dict[int, DeviceSet] = {}
        near, together = self.near, self.source.subgroups
        for receiver in members(receivers):
            close = holders & near.get(receiver, 0) or holders
            copies = members(close & together.get(receiver, 0) or close)
            sender = copies[self._replica(receiver) % len(copies)]
            found[sender] = found.get(sender, 0) | 1 << receiver
        return found

    def _replica(self, receiver: int) -> int:
        own = self.source.replica.get(receiver)
        return self.target.replica.get(receiver, 0) if own is None else own


@dataclass(slots=True)
class ByLoad:
    """The copy that has sent least so far. sent: at first what devices send that nobody else has."""

    near: dict[int, DeviceSet]
    sent: dict[int, int]

    def deal(self, holders: DeviceSet, receivers: DeviceSet, size: int) -> dict[int, DeviceSet]:
        """See Senders."""
        if only := _only(holders, receivers):
            return only
        found: dict[int, DeviceSet] = {}
        for receiver in members(receivers):
            copies = members(holders & self.near.get(receiver, 0) or holders)
            sender = min(copies, key=lambda copy: self.sent.get(copy, 0))
            self.sent[sender] = self.sent.get(sender, 0) + size
            found[sender] = found.get(sender, 0) | 1 << receiver
        return found


def _only(holders: DeviceSet, receivers: DeviceSet) -> dict[int, DeviceSet]:
    """The one holder, who serves all; nothing where there is a choice."""
    return {} if holders & (holders - 1) else {holders.bit_length() - 1: receivers}


def near_devices(cost: CostModel, devices: DeviceSet) -> dict[int, DeviceSet]:
    """The devices that each device reaches best; nothing where all are alike, by the last of them."""
    if not devices or cost.near(devices.bit_length() - 1) is None:
        return {}
    found = {device: cost.near(device) for device in members(devices)}
    return {device: devices_of(near) for device, near in found.items() if near is not None}
