"""Who waits for whom in an exchange: a field of the runtime's description, never of a link."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

Slowed = Callable[[int], float]
NCCL_BUFFER_BYTES = 4 << 20
"""What NCCL takes from a sender before the receiver is there: the default of NCCL_BUFFSIZE."""


class SendMode(Enum):
    """What a sender waits for."""

    BLOCKING = "blocking"
    BUFFERED = "buffered"
    ASYNC = "async"


@dataclass(frozen=True, slots=True)
class SendSemantics:
    """How a runtime sends and receives.

    BLOCKING: both ends wait from when both are there until the message is through. BUFFERED: the sender
    waits only for the part that does not fit in `buffer_bytes`. ASYNC: the sender goes on at once. A
    message is on its way as soon as both ends have posted it. posted_ahead: receives are posted when the
    step begins; otherwise when the rank reaches them.
    """

    mode: SendMode = SendMode.ASYNC
    buffer_bytes: int = NCCL_BUFFER_BYTES
    posted_ahead: bool = False

    def sender_waits(self, size_bytes: int) -> float:
        """The part of a message's time on the wire that its sender waits for."""
        if self.mode is SendMode.BLOCKING:
            return 1.0
        if self.mode is SendMode.ASYNC or size_bytes <= self.buffer_bytes:
            return 0.0
        return 1.0 - self.buffer_bytes / size_bytes

    def __str__(self) -> str:
        ahead = ", receives posted ahead" if self.posted_ahead else ""
        if self.mode is SendMode.BUFFERED:
            return f"buffered {self.buffer_bytes / (1 << 20):g} MiB{ahead}"
        return f"{self.mode.value}{ahead}"


@dataclass(frozen=True, slots=True)
class Hosts:
    """Processors that ranks share: of n that compute on a host of c cores, each goes at min(1, c / n).

    of: a rank's host; a rank that is not in it has a device for itself. cores: of each host. slowed: of hosts
    whose ranks slow each other also where each has a core, how many times longer n that compute at once take.
    """

    of: Mapping[int, int] = field(default_factory=dict)
    cores: Mapping[int, int] = field(default_factory=dict)
    slowed: Mapping[int, Slowed] = field(default_factory=dict)

    def shared(self) -> dict[int, int]:
        """rank -> host of the hosts with more ranks than cores, or whose ranks slow each other."""
        ranks: dict[int, int] = {}
        for host in self.of.values():
            ranks[host] = ranks.get(host, 0) + 1
        return {
            rank: host
            for rank, host in self.of.items()
            if host in self.slowed or ranks[host] > self.cores[host]
        }
