"""Tally: what each rank sends and receives in one step, counted without writing the transfers down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .sides import Devices, members


@dataclass(slots=True)
class Tally:
    """Elements, and peers, per rank and direction; what stays on a rank is no traffic."""

    sent: dict[int, int] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)
    sent_to: dict[int, Devices] = field(default_factory=dict)
    received_from: dict[int, Devices] = field(default_factory=dict)

    def add(self, senders: Devices, receivers: Devices, size: int) -> None:
        """Each sender sends `size` elements to each receiver other than itself."""
        if not size:
            return
        many = receivers.bit_count()
        for rank in members(senders):
            if others := many - (receivers >> rank & 1):
                self.sent[rank] = self.sent.get(rank, 0) + size * others
                self.sent_to[rank] = self.sent_to.get(rank, 0) | receivers
        many = senders.bit_count()
        for rank in members(receivers):
            if others := many - (senders >> rank & 1):
                self.received[rank] = self.received.get(rank, 0) + size * others
                self.received_from[rank] = self.received_from.get(rank, 0) | senders

    @property
    def busiest(self) -> int:
        """Elements that the busiest rank sends or receives."""
        return max(max(self.sent.values(), default=0), max(self.received.values(), default=0))

    @property
    def peers(self) -> int:
        """Peers of the rank that has most of them, in one direction."""
        return max(_most(self.sent_to), _most(self.received_from))


def _most(peers: Mapping[int, Devices]) -> int:
    return max((found.bit_count() - (found >> rank & 1) for rank, found in peers.items()), default=0)
