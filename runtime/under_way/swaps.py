"""Batches of sends and receives between ranks: under way at once, then waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Swap:
    """What is under way between this rank and others, by peer. What leaves is held until it has left."""

    works: Sequence[dist.Work]
    sent: Mapping[int, Tensor]
    received: Mapping[int, Tensor]

    def arrived(self, rank: int) -> Mapping[int, Tensor]:
        """What each peer sent here, the rank itself too, once all is over."""
        for work in self.works:
            work.wait()
        return {peer: self.sent[peer] if peer == rank else row for peer, row in self.received.items()}


def start_all(
    leaving: Mapping[int, Sequence[Tensor]],
    arriving: Mapping[int, Sequence[Tensor]],
    tag: int,
    world: dist.ProcessGroup | None,
) -> list[dist.Work]:
    """One batch of sends and receives, by peer."""
    batch = [
        dist.P2POp(move, row, peer, world, tag)
        for move, rows_of in ((dist.isend, leaving), (dist.irecv, arriving))
        for peer, rows in rows_of.items()
        for row in rows
    ]
    return dist.batch_isend_irecv(batch) if batch else []
