"""A rank's pieces of parameters: cut from the whole, and owned parts put back into the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ..base.comm_plan import Box, Combine
from ..errors import RunError
from ..program.boxes import pack, slices, unpack
from ..program.literals import torch_dtype
from ..program.program import ZERO_GRADS, ZERO_PARAMS, Shard

ReadBox = Callable[[Box], Tensor]


def cut_shard(shard: Shard, whole: Tensor, device: torch.device) -> Tensor:
    """`fill_shard` out of the whole tensor, a copy."""
    return fill_shard(shard, boxes_of(shard, whole), device)


def boxes_of(shard: Shard, whole: Tensor) -> ReadBox:
    """Reads boxes out of the whole tensor; views."""
    view = whole.reshape(shard.whole_view)
    return lambda box: view[slices(box)]


def fill_kept(shard: Shard, read: ReadBox, device: torch.device) -> Tensor:
    """What a rank trains of a tensor, each box read by its place in the factored view of the whole.

    It has the shape of `trained.trained_value`: a row, or the local tensor where that is trained itself.
    """
    if shard.zero:
        return _filled_run(shard, read, device)
    local = fill_shard(shard, read, device)
    return local.reshape(-1) if shard.is_flat else local


def _filled_run(shard: Shard, read: ReadBox, device: torch.device) -> Tensor:
    """The elements that this rank owns, flat; nothing else is read."""
    empty = torch.empty(0, dtype=torch_dtype(shard.dtype), device=device)
    rows = [_of_kind(shard, read(whole)).reshape(-1).to(empty) for whole, _ in shard.owned]
    return torch.cat([empty, *rows])


def fill_shard(shard: Shard, read: ReadBox, device: torch.device) -> Tensor:
    """What a rank starts with of a tensor: its local tensor, or with ZeRO-3 the row that it stores."""
    if shard.zero >= ZERO_PARAMS:
        return _filled_run(shard, read, device)
    local = torch.zeros(shard.shape, dtype=torch_dtype(shard.dtype), device=device)
    view = local.view(shard.view)
    for whole_box, local_box in shard.boxes:
        view[slices(local_box)] = _of_kind(shard, read(whole_box)).to(device=device, dtype=local.dtype)
    return local


def _of_kind(shard: Shard, given: Tensor) -> Tensor:
    """Real types are converted to each other, and complex ones; else numbers would be lost, or another's."""
    wanted = torch_dtype(shard.dtype)
    is_real = given.is_floating_point() and wanted.is_floating_point
    if given.dtype != wanted and not is_real and not (given.is_complex() and wanted.is_complex):
        raise RunError(
            f"{shard.name} is given as {str(given.dtype).removeprefix('torch.')}",
            details=[("program", shard.dtype)],
            rule="real types are converted to each other, and complex ones; else a tensor has its own type",
            fix="convert it before, or name the file of this model",
        )
    return given


def owned_run(shard: Shard, local: Tensor) -> Tensor:
    """The elements that this rank owns, flat, in the order of `owned`; may share memory with `local`."""
    return pack(local, shard.view, [local_box for _, local_box in shard.owned]).contiguous()


def owned_value(shard: Shard, value: Tensor) -> Tensor:
    """The elements that this rank owns out of what it trains of a parameter, flat."""
    return value.reshape(-1) if shard.zero else owned_run(shard, value)


def owned_grads(shards: Iterable[Shard], synced: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same out of synchronised gradients, by parameter."""
    return {
        shard.name: synced[shard.name] if shard.zero >= ZERO_GRADS else owned_run(shard, synced[shard.name])
        for shard in shards
        if shard.name in synced
    }


def place_run(whole: Tensor, view: tuple[int, ...], boxes: Sequence[Box], row: Tensor) -> None:
    """Write what `owned_run` gave into the whole tensor, at boxes of its factored view."""
    unpack(row, whole.view(view), boxes, Combine.COPY)
