"""Messages of a switch between all ranks in one process: each is taken in its order, and none is left."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from ...errors import VerifyError

FIX = "report it with both strategies: the plan made messages that do not match"

M = TypeVar("M")
"""A message, or what stands for one."""


class RankRounds(Protocol[M]):
    """One rank's part: rounds in which it sends, and waits for what comes."""

    arriving: Mapping[int, M] | None
    """What the round awaits, by the other rank; None: the part is over."""

    def go_on(self) -> Mapping[int, M]:
        """To the next round: what leaves, by the other rank."""


@dataclass(slots=True)
class SwitchMail(Generic[M]):
    """Messages under way, by (sender, receiver), in their order."""

    under_way: dict[tuple[int, int], deque[M]] = field(default_factory=dict)

    def post(self, rank: int, leaving: Mapping[int, M]) -> None:
        """Put messages of a rank on their way."""
        for peer, message in leaving.items():
            self.under_way.setdefault((rank, peer), deque()).append(message)

    def lacking(self, rank: int, arriving: Mapping[int, M]) -> list[int]:
        """Ranks whose message is not there yet."""
        return [peer for peer in arriving if not self.under_way.get((peer, rank))]

    def take(self, rank: int, peer: int) -> M:
        """The next message of a peer."""
        return self.under_way[peer, rank].popleft()

    def left(self) -> list[tuple[int, int]]:
        """Pairs with messages that nobody took."""
        return [pair for pair, messages in self.under_way.items() if messages]


def deliver(title: str, ranks: Mapping[int, RankRounds[M]], hand: Callable[[int, int, M, M], None]) -> None:
    """All rounds of all ranks. hand: (sender, receiver, message, what the receiver awaits).

    A VerifyError where ranks wait for each other, or leave a message.
    """
    mail: SwitchMail[M] = SwitchMail()
    for rank, own in ranks.items():
        mail.post(rank, own.go_on())
    moved = True
    while moved:
        moved = False
        for rank, own in ranks.items():
            if own.arriving is not None and not mail.lacking(rank, own.arriving):
                for peer, awaited in own.arriving.items():
                    hand(peer, rank, mail.take(rank, peer), awaited)
                mail.post(rank, own.go_on())
                moved = True
    _check_over(title, ranks, mail)


def _check_over(title: str, ranks: Mapping[int, RankRounds[M]], mail: SwitchMail[M]) -> None:
    waits = [
        (f"world rank {rank}", f"waits for {', '.join(map(str, mail.lacking(rank, own.arriving)))}")
        for rank, own in ranks.items()
        if own.arriving is not None
    ]
    unread = [
        (f"world rank {sender}", f"sends {receiver} what it never takes") for sender, receiver in mail.left()
    ]
    if waits or unread:
        raise VerifyError(
            f"ranks of {title} wait for each other",
            details=[*waits, *unread],
            rule="every message has a sender and a receiver, in the same order",
            fix=FIX,
        )
