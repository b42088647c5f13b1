"""Pieces of a tensor that devices hold under an annotation, and the tensor back from them."""

from __future__ import annotations

import torch
from torch import Tensor

from hspmd_compiler.annotations import Annotation


def whole_tensor(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Tensor:
    """Distinct numbers, none of which is a sum of others by chance."""
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def piece_of(annotation: Annotation, device: int, whole: Tensor) -> Tensor:
    """The device's rows of `whole`, by plain indexing."""
    held = annotation.intervals(tuple(whole.shape))[device]
    for dim, rows in enumerate(held):
        index = [row for low, high in rows for row in range(low, high)]
        whole = whole.index_select(dim, torch.tensor(index, dtype=torch.long))
    return whole.contiguous()


def addends_of(annotation: Annotation, whole: Tensor) -> dict[tuple[int, int], Tensor]:
    """Random addends by (alternative, index); those of one alternative add up to `whole`."""
    shape = tuple(whole.shape)
    found = annotation.addends()
    boxes = annotation.regions(shape)
    keys = sorted({(own.alternative, own.index) for own in found.values()})
    generator = torch.Generator().manual_seed(7)
    values: dict[tuple[int, int], Tensor] = {}
    for alternative in sorted({alternative for alternative, _ in keys}):
        left = whole.clone()
        indices = [index for other, index in keys if other == alternative]
        last = _last_held(annotation, alternative, shape)
        for index in indices:
            random = torch.randn(shape, generator=generator, dtype=whole.dtype)
            mask = torch.zeros(shape, dtype=torch.bool)
            for device, own in found.items():
                if (own.alternative, own.index) == (alternative, index):
                    for box in boxes[device]:
                        mask[tuple(slice(low, high) for low, high in box)] = True
            value = torch.where(last == index, left, random)
            value = torch.where(mask, value, torch.zeros((), dtype=whole.dtype))
            left = left - value
            values[alternative, index] = value
    return values


def _last_held(annotation: Annotation, alternative: int, shape: tuple[int, ...]) -> Tensor:
    """Per element the last index of an alternative that any device holds."""
    found = annotation.addends()
    last = torch.full(shape, -1)
    for device, boxes in annotation.regions(shape).items():
        own = found[device]
        if own.alternative == alternative:
            for box in boxes:
                index = tuple(slice(low, high) for low, high in box)
                last[index] = torch.clamp(last[index], min=own.index)
    return last


def pieces_of(annotation: Annotation, whole: Tensor) -> dict[int, Tensor]:
    """What each device holds, so that the value is `whole`."""
    values = addends_of(annotation, whole)
    found = annotation.addends()
    return {
        device: piece_of(annotation, device, values[own.alternative, own.index])
        for device, own in found.items()
    }


def value_of(annotation: Annotation, pieces: dict[int, Tensor], shape: tuple[int, ...]) -> dict[int, Tensor]:
    """The whole value that each alternative stands for; copies of an addend must be equal, bit for bit."""
    found, boxes = annotation.addends(), annotation.regions(shape)
    totals: dict[int, Tensor] = {}
    values: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    for device, own in found.items():
        value, seen = values.setdefault(
            (own.alternative, own.index), (torch.zeros(shape, dtype=torch.float64), torch.zeros(shape).bool())
        )
        parts = _by_box(annotation, device, pieces[device], shape)
        for box, part in zip(boxes[device], parts, strict=True):
            index = tuple(slice(low, high) for low, high in box)
            assert torch.equal(value[index][seen[index]], part[seen[index]]), f"copies differ on {device}"
            value[index], seen[index] = part, torch.ones_like(part).bool()
    for (alternative, _), (value, _) in sorted(values.items()):
        totals[alternative] = totals.get(alternative, torch.zeros(shape, dtype=torch.float64)) + value
    return totals


def _by_box(annotation: Annotation, device: int, piece: Tensor, shape: tuple[int, ...]) -> list[Tensor]:
    """A device's tensor cut into its boxes, row-major."""
    parts = [piece]
    for dim, rows in enumerate(annotation.intervals(shape)[device]):
        lengths = [high - low for low, high in rows]
        parts = [own for part in parts for own in (part.split(lengths, dim) if lengths else ())]
    return parts
