"""A rank's pieces of parameters: cut from the whole, and owned parts put back into the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ..artifact.boxes import pack, slices, unpack
from ..artifact.program import ZERO_GRADS, Shard
from ..comm_plan import Box, Combine

ReadBox = Callable[[Box], Tensor]


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of a name from an artifact."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), "the artifact was checked at load"
    return dtype


def cut_shard(shard: Shard, whole: Tensor, device: torch.device) -> Tensor:
    """The local tensor of a shard, a copy out of the whole tensor."""
    view = whole.reshape(shard.whole_view)
    return fill_shard(shard, lambda box: view[slices(box)], device)


def fill_shard(shard: Shard, read: ReadBox, device: torch.device) -> Tensor:
    """The local tensor of a shard, each box read by its place in the factored view of the whole."""
    local = torch.zeros(shard.shape, dtype=dtype_of(shard.dtype), device=device)
    view = local.view(shard.view)
    for whole_box, local_box in shard.boxes:
        view[slices(local_box)] = read(whole_box).to(device=device, dtype=local.dtype)
    return local


def owned_row(shard: Shard, local: Tensor) -> Tensor:
    """The elements that this rank owns, flat, in the order of `owned`; may share memory with `local`."""
    return pack(local, shard.view, [local_box for _, local_box in shard.owned]).contiguous()


def owned_value(shard: Shard, value: Tensor) -> Tensor:
    """The elements that this rank owns out of what it trains of a parameter, flat."""
    return value.reshape(-1) if shard.zero else owned_row(shard, value)


def owned_grads(shards: Iterable[Shard], synced: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same out of synchronised gradients, by parameter."""
    return {
        shard.name: synced[shard.name] if shard.zero >= ZERO_GRADS else owned_row(shard, synced[shard.name])
        for shard in shards
        if shard.name in synced
    }


def place_row(whole: Tensor, view: tuple[int, ...], boxes: Sequence[Box], row: Tensor) -> None:
    """Write what `owned_row` gave into the whole tensor, at boxes of its factored view."""
    unpack(row, whole.view(view), boxes, Combine.COPY)
