"""Tally: what each rank sends and receives in one step, counted without writing the transfers down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .sides import DeviceSet, members

Amounts = dict[DeviceSet, int]
"""Elements for each rank of a set; a rank in several sets has the sum of theirs."""


class Busiest(NamedTuple):
    """Elements of the rank that sends most, and of the one that receives most, and the most peers."""

    sent: int
    received: int
    peers: int


@dataclass(slots=True)
class Tally:
    """Elements, and peers, per set of ranks and direction; what stays on a rank is no traffic.

    Adding to a set costs the same for any number of ranks.
    """

    sent: Amounts = field(default_factory=dict)
    received: Amounts = field(default_factory=dict)
    sent_to: dict[DeviceSet, DeviceSet] = field(default_factory=dict)
    received_from: dict[DeviceSet, DeviceSet] = field(default_factory=dict)

    def add(self, senders: DeviceSet, receivers: DeviceSet, size: int) -> None:
        """Each sender sends `size` elements to each receiver other than itself."""
        if not (size and senders and receivers):
            return
        sent, received = self.sent, self.received
        sent[senders] = sent.get(senders, 0) + size * receivers.bit_count()
        received[receivers] = received.get(receivers, 0) + size * senders.bit_count()
        if both := senders & receivers:
            sent[both] = sent.get(both, 0) - size
            received[both] = received.get(both, 0) - size
        self.sent_to[senders] = self.sent_to.get(senders, 0) | receivers
        self.received_from[receivers] = self.received_from.get(receivers, 0) | senders

    def busiest(self) -> Busiest:
        """The busiest ranks."""
        sent, to = _most(self.sent, self.sent_to)
        received, by = _most(self.received, self.received_from)
        return Busiest(sent, received, max(to, by))


def largest(amounts: Amounts) -> int:
    """Of the rank that has most; 0 where there is none."""
    return _most(amounts, {})[0]


def _most(amounts: Amounts, peers: Mapping[DeviceSet, DeviceSet]) -> tuple[int, int]:
    """Elements of the rank that has most of them, and peers of the one that has most."""
    sizes: dict[int, int] = {}
    others: dict[int, DeviceSet] = {}
    for devices, amount in amounts.items():
        own = peers.get(devices, 0)
        for device in members(devices):
            sizes[device] = sizes.get(device, 0) + amount
            if own:
                others[device] = others.get(device, 0) | own
    counts = [found.bit_count() - (found >> device & 1) for device, found in others.items()]
    return max(sizes.values(), default=0), max(counts, default=0)
