"""Whole tensors out of the shards of ranks, by the boxes of each shard."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..errors import VerifyError
from ..program.boxes import slices
from ..program.program import Shard

RankShard = tuple[int, Shard, Tensor]
"""(rank, its shard, the local tensor)."""

COPIES_RULE = "copies of an element on different ranks are equal, bit by bit"


def join_shards(name: str, held: Iterable[RankShard]) -> Tensor:
    """The whole tensor. A VerifyError where copies differ, or where no rank holds an element."""
    parts = list(held)
    shard, dtype = parts[0][1], parts[0][2].dtype
    whole = torch.zeros(shard.whole_shape, dtype=dtype)
    holder = torch.full(shard.whole_shape, -1, dtype=torch.int64)
    for rank, shard, local in parts:
        _join(name, rank, shard, local, whole.view(shard.whole_view), holder.view(shard.whole_view))
    missing = int((holder < 0).sum())
    if missing:
        raise VerifyError(f"{name}: no rank holds {missing} of {whole.numel()} elements", fix=COMPILER_FIX)
    return whole


def holds(shard: Shard | None, element: int) -> bool:
    """Whether a shard has this element of the whole, counted through its dims."""
    if shard is None:
        return False
    index: list[int] = []
    for size in reversed(shard.whole_view):
        index.insert(0, element % size)
        element //= size
    return any(
        all(low <= i < high for i, (low, high) in zip(index, box, strict=True)) for box, _ in shard.boxes
    )


COMPILER_FIX = "report it with the strategy: the compiler placed a tensor wrongly"


def _join(name: str, rank: int, shard: Shard, local: Tensor, whole: Tensor, holder: Tensor) -> None:
    source = local.detach().reshape(shard.view)
    for to_box, from_box in shard.boxes:
        old, who = whole[slices(to_box)], holder[slices(to_box)]
        new = source[slices(from_box)].reshape(old.shape)
        differs = (who >= 0) & (old != new) & ~(old.isnan() & new.isnan())
        if differs.any():
            raise _copies_differ(name, rank, old[differs], new[differs], who[differs])
        old.copy_(new)
        who.fill_(rank)


def _copies_differ(name: str, rank: int, old: Tensor, new: Tensor, who: Tensor) -> VerifyError:
    gap = (old - new).abs()
    worst = int(gap.argmax())
    return VerifyError(
        f"{name}: copies of {len(gap)} elements differ",
        details=[
            (f"rank {int(who[worst])}", repr(old[worst].item())),
            (f"rank {rank}", repr(new[worst].item())),
        ],
        rule=COPIES_RULE,
        fix=COMPILER_FIX,
    )
