"""A rank's pieces of parameters: cut from the whole, put together to the whole, owned parts as one row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from ..artifact.program import Shard
from ..comm_plan import Box, box_volume

BoxPairs = Sequence[tuple[Box, Box]]
ReadBox = Callable[[Box], Tensor]


def dtype_of(shard: Shard) -> torch.dtype:
    """The torch dtype of a shard."""
    dtype = getattr(torch, shard.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


def slices(box: Box) -> tuple[slice, ...]:
    """A box as an index."""
    return tuple(slice(low, high) for low, high in box)


def cut(whole: Tensor, shard: Shard, device: torch.device) -> Tensor:
    """The local tensor of a shard, from the whole tensor."""
    view = whole.reshape(shard.whole_view)
    return fill(shard, device, lambda box: view[slices(box)])


def fill(shard: Shard, device: torch.device, read: ReadBox) -> Tensor:
    """The local tensor of a shard, each box read by its place in the whole."""
    local = torch.zeros(shard.shape, dtype=dtype_of(shard), device=device)
    view = local.view(shard.view)
    for whole_box, local_box in shard.boxes:
        view[slices(local_box)] = read(whole_box).to(device=device, dtype=local.dtype)
    return local


def owned_row(local: Tensor, shard: Shard) -> Tensor:
    """The elements that this rank owns, as one contiguous row, in the order of `owned`."""
    if owns_all(shard):
        return local.reshape(-1)
    view = local.view(shard.view)
    parts = [view[slices(local_box)].reshape(-1) for _, local_box in shard.owned]
    return torch.cat(parts) if parts else local.new_empty(0)


def owns_all(shard: Shard) -> bool:
    """Whether the owned part is the local tensor as it lies in memory."""
    if len(shard.owned) != 1:
        return False
    return shard.owned[0][1] == tuple((0, size) for size in shard.view)


def place(whole: Tensor, view: tuple[int, ...], boxes: Iterable[Box], row: Tensor) -> None:
    """Write a row made by `owned_row` into the whole tensor, at boxes of its factored view."""
    target = whole.view(view)
    offset = 0
    for box in boxes:
        volume = box_volume(box)
        part = target[slices(box)]
        part.copy_(row[offset : offset + volume].view(part.shape))
        offset += volume
