"""All world ranks of a switch in one process: each does what it does in training, mail is handed over."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...errors import VerifyError
from ...program.switch_plan import SwitchPlan
from ...runtime.switching.carry import Carrying, CarryRound, carrying
from ...runtime.switching.held import HeldState, StateLayout

FIX = "report it with both strategies: the plan made messages that do not match"


@dataclass(slots=True)
class SwitchTraffic:
    """Messages that were handed over, and the bytes in them."""

    messages: int = 0
    moved_bytes: int = 0


@dataclass(slots=True)
class _RankCarry:
    """One rank's switch: where it stands, and what it came to."""

    run: Carrying
    waiting: CarryRound | None = None
    result: HeldState | None = None

    def go_on(self) -> Mapping[int, Tensor]:
        """Up to the next round, or the end: what leaves."""
        try:
            self.waiting = next(self.run)
            return self.waiting.leaving
        except StopIteration as end:
            self.waiting, self.result = None, end.value
            return {}


@dataclass(slots=True)
class SwitchMail:
    """Messages under way, by (sender, receiver), in their order."""

    under_way: dict[tuple[int, int], deque[Tensor]] = field(default_factory=dict)

    def post(self, rank: int, leaving: Mapping[int, Tensor]) -> None:
        for peer, message in leaving.items():
            self.under_way.setdefault((rank, peer), deque()).append(message)

    def lacking(self, rank: int, arriving: Mapping[int, Tensor]) -> list[int]:
        """Ranks whose message is not there yet."""
        return [peer for peer in arriving if not self.under_way.get((peer, rank))]

    def take(self, rank: int, peer: int) -> Tensor:
        return self.under_way[peer, rank].popleft()

    def left(self) -> list[tuple[int, int]]:
        """Pairs with messages that nobody took."""
        return [pair for pair, messages in self.under_way.items() if messages]


def carry_together(
    plan: SwitchPlan, before: Mapping[int, HeldState], after: Mapping[int, StateLayout]
) -> tuple[dict[int, HeldState], SwitchTraffic]:
    """The state of every world rank after a switch. before, after: of all world ranks, idle ones too."""
    device = torch.device("cpu")
    ranks = {rank: _RankCarry(carrying(plan, rank, before[rank], after[rank], device)) for rank in before}
    mail, traffic = SwitchMail(), SwitchTraffic()
    for rank, own in ranks.items():
        mail.post(rank, own.go_on())
    moved = True
    while moved:
        moved = False
        for rank, own in ranks.items():
            if own.waiting is not None and not mail.lacking(rank, own.waiting.arriving):
                _deliver(plan, rank, own.waiting, mail, traffic)
                mail.post(rank, own.go_on())
                moved = True
    _check_over(plan, ranks, mail)
    return {rank: own.result for rank, own in ranks.items() if own.result is not None}, traffic


def _deliver(
    plan: SwitchPlan, rank: int, given: CarryRound, mail: SwitchMail, traffic: SwitchTraffic
) -> None:
    for peer, memory in given.arriving.items():
        message = mail.take(rank, peer)
        if message.numel() != memory.numel() or message.dtype != memory.dtype:
            raise VerifyError(
                f"a message of the switch {plan.source}:{plan.target} does not fit its receiver",
                details=[
                    (f"rank {peer} sends", f"{message.numel()} x {message.dtype}"),
                    (f"rank {rank} awaits", f"{memory.numel()} x {memory.dtype}"),
                ],
                fix=FIX,
            )
        memory.copy_(message)
        traffic.messages += 1
        traffic.moved_bytes += message.numel() * message.element_size()


def _check_over(plan: SwitchPlan, ranks: Mapping[int, _RankCarry], mail: SwitchMail) -> None:
    waits = [
        (f"rank {rank}", f"waits for {', '.join(map(str, mail.lacking(rank, own.waiting.arriving)))}")
        for rank, own in ranks.items()
        if own.waiting is not None
    ]
    unread = [
        (f"rank {sender}", f"sends to {receiver} what it never takes") for sender, receiver in mail.left()
    ]
    if waits or unread:
        raise VerifyError(
            f"ranks of the switch {plan.source}:{plan.target} wait for each other",
            details=[*waits, *unread],
            rule="every message has a sender and a receiver, in the same order",
            fix=FIX,
        )
