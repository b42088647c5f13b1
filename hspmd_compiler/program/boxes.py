"""Cutting boxes out of tensors and pasting them: how every driver moves data for a CommStep.

Boxes in a row are one flat run of elements, which may be cut anywhere: how any number is shared out evenly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from ..base.comm_plan import Box, Combine, CommStep, box_volume

if TYPE_CHECKING:
    from torch import Tensor

TensorBoxes: TypeAlias = "tuple[Tensor, Sequence[Box]]"


@lru_cache(maxsize=65536)
def slices(box: Box) -> tuple[slice, ...]:
    """The box as an index."""
    return tuple(slice(low, high) for low, high in box)


@lru_cache(maxsize=65536)
def full_box(view: tuple[int, ...]) -> Box:
    """The box that is all of a view."""
    return tuple((0, size) for size in view)


def in_one_run(view: tuple[int, ...], boxes: Sequence[Box]) -> bool:
    """Whether the boxes are one run of memory, which `pack` gives as it lies, dense and without a copy."""
    if len(boxes) != 1:
        return not boxes
    sizes = [high - low for low, high in boxes[0]]
    cut = next((dim for dim, size in enumerate(sizes) if size > 1), len(sizes))
    return sizes[cut + 1 :] == [*view[cut + 1 :]]


def volume(boxes: Sequence[Box]) -> int:
    """Elements in all boxes, overlaps counted as often as they occur."""
    return sum(box_volume(box) for box in boxes)


def flat_part(boxes: Iterable[Box], start: int, stop: int) -> tuple[Box, ...]:
    """Boxes of the elements [start, stop) of all boxes, one after the other, each row-major; in order."""
    found: list[Box] = []
    before = 0
    for box in boxes:
        size = box_volume(box)
        low, high = max(start - before, 0), min(stop - before, size)
        if low < high:
            found += _part_of(box, low, high)
        before += size
    return tuple(found)


def _part_of(box: Box, start: int, stop: int) -> Iterator[Box]:
    """The elements [start, stop) of one box: a part of its first row, whole rows, a part of its last."""
    if start == 0 and stop == box_volume(box):
        yield box
        return
    (low, _), rest = box[0], box[1:]
    inner = box_volume(rest)
    first, last = start // inner, stop // inner
    if first == last:
        yield from _in_row(low + first, rest, start - first * inner, stop - first * inner)
        return
    if start % inner:
        yield from _in_row(low + first, rest, start % inner, inner)
        first += 1
    if first < last:
        yield ((low + first, low + last), *rest)
    if stop % inner:
        yield from _in_row(low + last, rest, 0, stop % inner)


def _in_row(row: int, rest: Box, start: int, stop: int) -> Iterator[Box]:
    return (((row, row + 1), *box) for box in _part_of(rest, start, stop))


def pack(tensor: Tensor, view: tuple[int, ...], boxes: Sequence[Box]) -> Tensor:
    """The boxes of `tensor` viewed as `view`, one after the other, flat.

    The result may share memory with `tensor` where the boxes are all of it.
    """
    viewed = tensor.reshape(view)
    if len(boxes) == 1:
        whole = boxes[0] == full_box(view)
        return (viewed if whole else viewed[slices(boxes[0])]).reshape(-1)
    if not boxes:
        return tensor.new_empty(0)
    import torch  # late: prices count boxes without

    return torch.cat([viewed[slices(box)].reshape(-1) for box in boxes])


def unpack(flat: Tensor, into: Tensor, boxes: Sequence[Box], combine: Combine) -> None:
    """Fill (COPY) or add to (SUM) the boxes of `into`, a factored view, from `flat` in order."""
    start = 0
    for box in boxes:
        target = into[slices(box)]
        size = target.numel()
        piece = flat[start : start + size].view(target.shape)
        if combine is Combine.SUM:
            target += piece
        else:
            target.copy_(piece)
        start += size


def assemble(
    parts: Sequence[TensorBoxes],
    view: tuple[int, ...],
    shape: tuple[int, ...],
    combine: Combine,
    empty: Tensor,
) -> Tensor:
    """A tensor of `shape` made of parts; zeros where no part lies. empty: gives dtype and device.

    The result shares memory with the part where one part is all of it.
    """
    if len(parts) == 1 and len(parts[0][1]) == 1 and parts[0][1][0] == full_box(view):
        return parts[0][0].reshape(shape)
    out = empty.new_zeros(view)
    for flat, boxes in parts:
        unpack(flat, out, boxes, combine)
    return out.reshape(shape)


def cut(step: CommStep, source: Tensor) -> dict[int, Tensor]:
    """What `step` sends, flat, by peer; the rank itself is a peer too."""
    assert step.src_view is not None, "only a rank with the source cuts"
    by_peer: dict[int, list[Box]] = {}
    for piece in step.sends:
        by_peer.setdefault(piece.peer, []).extend(piece.boxes)
    return {peer: pack(source, step.src_view, boxes) for peer, boxes in by_peer.items()}


def sent_volumes(step: CommStep) -> dict[int, int]:
    """Elements that `step` sends, by peer."""
    return _volumes([(piece.peer, volume(piece.boxes)) for piece in step.sends])


def received_volumes(step: CommStep) -> dict[int, int]:
    """Elements that `step` receives, by peer."""
    return _volumes([(piece.peer, volume(piece.boxes)) for piece in step.recvs])


def paste(step: CommStep, arrived: Mapping[int, Tensor], empty: Tensor) -> Tensor:
    """The destination of `step` from what each peer sent; empty pieces need not arrive.

    empty: gives dtype and device.
    """
    assert step.dst_view is not None and step.dst_shape is not None, "only a receiver pastes"
    taken = dict.fromkeys(arrived, 0)
    parts: list[TensorBoxes] = []
    for piece in step.recvs:
        size = volume(piece.boxes)
        if not size:
            continue
        start = taken[piece.peer]
        parts.append((arrived[piece.peer][start : start + size], piece.boxes))
        taken[piece.peer] = start + size
    return assemble(parts, step.dst_view, step.dst_shape, step.combine, empty)


def _volumes(pairs: Sequence[tuple[int, int]]) -> dict[int, int]:
    totals: dict[int, int] = {}
    for peer, size in pairs:
        totals[peer] = totals.get(peer, 0) + size
    return totals


def one_run(rows: Sequence[Tensor]) -> Tensor | None:
    """Flat rows as one, in their own memory, where they lie in it one behind the other."""
    if not rows:
        return None
    first, at = rows[0], rows[0].storage_offset()
    for row in rows:
        alike = row.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not alike or row.storage_offset() != at or not row.is_contiguous():
            return None
        at += row.numel()
    return first.as_strided((at - first.storage_offset(),), (1,))
