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
class _Copies:
    """Each receiver chooses one of several copies, of the near ones if there are any."""

    near: dict[int, DeviceSet]

    def deal(self, holders: DeviceSet, receivers: DeviceSet, size: int) -> dict[int, DeviceSet]:
        """See Senders."""
        if not holders & (holders - 1):
            return {holders.bit_length() - 1: receivers}
        found: dict[int, DeviceSet] = {}
        for receiver in members(receivers):
            sender = self.chosen(receiver, holders & self.near.get(receiver, 0) or holders, size)
            found[sender] = found.get(sender, 0) | 1 << receiver
        return found

    def chosen(self, receiver: int, copies: DeviceSet, size: int) -> int:
        """Which of the copies a receiver gets."""
        raise NotImplementedError


@dataclass(slots=True)
class ByReplica(_Copies):
    """The copy of the receiver's own subgroup, else the copy with the receiver's replica number.

    Ranks that hold one replica together so stay together, and receivers spread over the copies.
    """

    source: Side
    target: Side

    def chosen(self, receiver: int, copies: DeviceSet, size: int) -> int:
        """See above."""
        together = members(copies & self.source.subgroups.get(receiver, 0) or copies)
        own = self.source.replica.get(receiver)
        number = self.target.replica.get(receiver, 0) if own is None else own
        return together[number % len(together)]


@dataclass(slots=True)
class ByLoad(_Copies):
    """The copy that has sent least so far. sent: at first what devices send that nobody else has."""

    sent: dict[int, int]

    def chosen(self, receiver: int, copies: DeviceSet, size: int) -> int:
        """See above."""
        sender = min(members(copies), key=lambda copy: self.sent.get(copy, 0))
        self.sent[sender] = self.sent.get(sender, 0) + size
        return sender


def near_devices(cost: CostModel, devices: DeviceSet) -> dict[int, DeviceSet]:
    """The devices that each device reaches best; nothing where all are alike, by the last of them."""
    if not devices or cost.near(devices.bit_length() - 1) is None:
        return {}
    found = {device: cost.near(device) for device in members(devices)}
    return {device: devices_of(near) for device, near in found.items() if near is not None}
