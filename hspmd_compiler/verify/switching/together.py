"""All world ranks of a switch in one process: each does what it does in training, mail is handed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import VerifyError
from ...program.switch_plan import SwitchPlan
from ...runtime.switching.carry import Carrying, carrying
from ...runtime.switching.held import HeldState, StateLayout
from .mail import FIX, deliver


@dataclass(slots=True)
class SwitchTraffic:
    """Messages that were handed over, and the bytes in them."""

    messages: int = 0
    moved_bytes: int = 0


@dataclass(slots=True)
class _RankCarry:
    """One rank's switch: where it stands, and what it came to."""

    run: Carrying
    arriving: Mapping[int, Sequence[Tensor]] | None = None
    result: HeldState | None = None

    def go_on(self) -> Mapping[int, Sequence[Tensor]]:
        self.arriving = None  # before memory of the next ones is made
        try:
            messages = next(self.run)
        except StopIteration as end:
            self.result = end.value
            return {}
        self.arriving = messages.arriving
        return messages.leaving


def carry_together(
    plan: SwitchPlan, before: Mapping[int, HeldState], after: Mapping[int, StateLayout]
) -> tuple[dict[int, HeldState], SwitchTraffic]:
    """The state of every world rank after a switch. before, after: of all world ranks, idle ones too."""
    device = torch.device("cpu")
    ranks = {rank: _RankCarry(carrying(plan, rank, before[rank], after[rank], device)) for rank in before}
    title, traffic = f"the switch {plan.source}:{plan.target}", SwitchTraffic()

    def hand(sender: int, receiver: int, message: Sequence[Tensor], memory: Sequence[Tensor]) -> None:
        if _forms(message) != _forms(memory):
            raise VerifyError(
                f"a message of {title} does not fit its receiver",
                details=[
                    (f"world rank {sender} sends", ", ".join(_forms(message))),
                    (f"world rank {receiver} awaits", ", ".join(_forms(memory))),
                ],
                fix=FIX,
            )
        for row, place in zip(message, memory, strict=True):
            place.copy_(row)
            traffic.messages += 1
            traffic.moved_bytes += row.numel() * row.element_size()

    deliver(title, ranks, hand)
    return {rank: own.result for rank, own in ranks.items() if own.result is not None}, traffic


def _forms(rows: Sequence[Tensor]) -> list[str]:
    return [f"{row.numel()} x {row.dtype}" for row in rows]
