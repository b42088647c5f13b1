"""What a rank trains: whole local tensors, or flat rows of the elements that it stores, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.comm_plan import Combine
from . import boxes
from .execute import RankState
from .program import ZERO_GRADS, ZERO_PARAMS, Shard


@dataclass(frozen=True, slots=True)
class Trainable:
    """A parameter with a gradient. value: to be updated in place; both have one shape."""

    shard: Shard
    value: Tensor
    grad: Tensor


def started(shards: Iterable[Shard], given: Mapping[str, Tensor]) -> RankState[Tensor]:
    """A rank's state from what `store` takes, by name."""
    state: RankState[Tensor] = RankState({})
    for shard in shards:
        store(shard, given[shard.name], state)
    return state


def store(shard: Shard, given: Tensor, state: RankState[Tensor]) -> None:
    """Take over a whole local tensor, or with ZeRO-3 what `kept_run` makes of it, in the type of masters."""
    if shard.zero >= ZERO_PARAMS:
        state.stored[shard.name] = given
        return
    if shard.is_flat:
        state.stored[shard.name] = kept_run(shard, given).clone()
    state.params[shard.name] = given.to(getattr(torch, shard.local_dtype))


def kept_run(shard: Shard, local: Tensor) -> Tensor:
    """The elements that the rank trains out of a whole local tensor; may share its memory."""
    return boxes.pack(local, shard.view, shard.kept)


def trainables(shards: Iterable[Shard], state: RankState[Tensor]) -> list[Trainable]:
    """Every parameter that has a gradient, in the order of the shards. `put_back` ends the update."""
    found = []
    for shard in shards:
        if shard.name in state.synced:
            value = trained_value(shard, state)
            dense = value.contiguous() if shard.zero else value  # a box may be every other element
            found.append(Trainable(shard, dense, _grad(shard, state)))
    return found


def trained_value(shard: Shard, state: RankState[Tensor]) -> Tensor:
    """What of a parameter or buffer is updated and saved: see `Shard.kept` for its elements."""
    if shard.is_flat:
        return state.stored[shard.name]
    local = state.params[shard.name]
    return kept_run(shard, local) if shard.zero else local


def _grad(shard: Shard, state: RankState[Tensor]) -> Tensor:
    grad = state.synced[shard.name]
    if shard.zero >= ZERO_GRADS or not (shard.is_flat or shard.zero):
        return grad
    return kept_run(shard, grad)


def put_back(updated: Iterable[Trainable], state: RankState[Tensor]) -> None:
    """Write updated values into the local tensors that segments read, where they do not lie there already."""
    for each in updated:
        shard = each.shard
        if shard.zero < ZERO_PARAMS and (shard.is_flat or shard.zero):
            local = state.params[shard.name]
            if each.value.untyped_storage().data_ptr() != local.untyped_storage().data_ptr():
                put_in_local(shard, each.value, local)


def put_in_local(shard: Shard, value: Tensor, local: Tensor) -> None:
    """Write what a rank trains, flat, into its local tensor, in the type of that one."""
    boxes.unpack(value.to(local.dtype), local.view(shard.view), shard.kept, Combine.COPY)


def as_local(shard: Shard, row: Tensor) -> Tensor:
    """A row in the shape of the local tensor; zeros where the rank trains nothing."""
    local = row.new_zeros(shard.view)
    boxes.unpack(row, local, shard.kept, Combine.COPY)
    return local.view(shard.shape)
