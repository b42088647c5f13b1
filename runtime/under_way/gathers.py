"""All-gathers of one piece of each member, as long as the longest, under way while this rank computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Gather:
    """What all members give, one behind the other, once it is there. own: held until it has left."""

    work: dist.Work
    own: Tensor
    arrived: Tensor

    @classmethod
    def started(cls, own: Tensor, members: int, group: dist.ProcessGroup | None) -> Gather:
        """Let it be under way. own: what this rank gives, flat, in the type of the wire."""
        arrived = own.new_empty(members * own.numel())
        work = dist.all_gather_into_tensor(arrived, own, group, async_op=True)
        assert work is not None, "this rank is in the group"
        return cls(work, own, arrived)

    def ended(self) -> Tensor:
        """All of it, once it is there."""
        self.work.wait()
        return self.arrived


def as_long_as(row: Tensor | None, longest: int, like: Tensor) -> Tensor:
    """A piece with zeros behind it. like: of which type and where, for a member without one."""
    padded = like.new_zeros(longest)
    if row is not None:
        padded[: row.numel()] = row
    return padded


def pieces(arrived: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Of each member its own, without what is behind it."""
    rows = arrived.view(len(sizes), -1)
    return [row[:size] for row, size in zip(rows, sizes, strict=True)]
