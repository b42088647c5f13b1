"""What a step does to a rank's parameters: gradients clipped, updated, new values handed to the segments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..program.execute import RankState
from ..program.program import Shard
from ..program.trained import put_back, trainables
from .gradient_norm import clip
from .optimizer import ShardOptimizer


@torch.no_grad()
def update_shards(
    shards: Sequence[Shard],
    state: RankState[Tensor],
    optimizer: ShardOptimizer,
    norm: float | None,
    lr: float,
) -> None:
    """One update of one rank, in training and in the proof of it. norm: of all gradients of all ranks."""
    limit = optimizer.config.max_grad_norm
    if limit is not None and norm is not None:
        clip(state.synced, norm, limit)
    trained = trainables(shards, state)
    values = {each.shard.name: each.value for each in trained}
    optimizer.update(values, {each.shard.name: each.grad for each in trained}, lr)
    put_back(trained, state)
