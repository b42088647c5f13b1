"""What a step does to a rank's parameters: gradients clipped, updated, new values handed to the segments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..program.execute import RankState
from ..program.program import Shard
from ..program.trained import put_back, trainables, trained_value
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
    ready_update(shards, state, optimizer, norm)
    apply_update(shards, state, optimizer, lr)


@torch.no_grad()
def ready_update(
    shards: Sequence[Shard], state: RankState[Tensor], optimizer: ShardOptimizer, norm: float | None
) -> None:
    """Clip the synchronised gradients and allocate the moments: what is left is local."""
    limit = optimizer.config.max_grad_norm
    if limit is not None and norm is not None:
        clip(state.synced, norm, limit)
    new = [each for each in shards if each.name in state.synced and each.name not in optimizer.state]
    optimizer.allocate({shard.name: trained_value(shard, state) for shard in new})


@torch.no_grad()
def apply_update(
    shards: Sequence[Shard], state: RankState[Tensor], optimizer: ShardOptimizer, lr: float
) -> None:
    """Update from gradients that `ready_update` has left; new values of buffers come into force, too."""
    trained = trainables(shards, state)
    values = {each.shard.name: each.value for each in trained}
    optimizer.update(values, {each.shard.name: each.grad for each in trained}, lr)
    put_back(trained, state)
    state.params.update(state.buffers)
    state.buffers.clear()
