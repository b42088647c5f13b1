"""Values without numbers: shapes that know how much memory they keep alive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import torch

from ...base.comm_plan import Box, Combine, CommStep
from ...errors import VerifyError
from ...program.arrays import NARROW_TYPES, Boxes, View
from ...program.boxes import full_box, sent_volumes
from ...program.literals import torch_dtype


@dataclass(slots=True)
class Meter:
    """Bytes that one rank holds now, and the most it held at once."""

    live: int = 0
    peak: int = 0

    def note(self, extra: int) -> None:
        """`extra` bytes more than now are held for a moment."""
        self.peak = max(self.peak, self.live + extra)


class MemoryBlock:
    """Memory that lives as long as somebody refers to it."""

    __slots__ = ("meter", "size")

    def __init__(self, meter: Meter, size: int) -> None:
        self.meter = meter
        self.size = size
        meter.live += size
        meter.note(0)

    def __del__(self) -> None:
        self.meter.live -= self.size


@dataclass(slots=True)
class ShapeValue:
    """A tensor without data. block: its memory, shared with the views of it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    block: MemoryBlock
    stride: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        self.stride = self.stride or dense_stride(self.shape)

    def numel(self) -> int:
        """Elements."""
        return prod(self.shape)


def dense_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    strides = [1] * len(shape)
    for index in range(len(shape) - 2, -1, -1):
        strides[index] = strides[index + 1] * max(shape[index + 1], 1)
    return tuple(strides)


class ShapeArrays:
    """`Arrays` and `Moves` for shapes; results are charged to one rank's meter."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def make(self, shape: tuple[int, ...], dtype: torch.dtype) -> ShapeValue:
        """A new contiguous value of this rank."""
        return ShapeValue(shape, dtype, MemoryBlock(self.meter, prod(shape) * dtype.itemsize))

    def cut(self, step: CommStep, source: ShapeValue) -> dict[int, ShapeValue]:
        """See Moves."""
        assert step.src_view is not None, "only a rank with the source cuts"
        check_view(f"source of step {step.id}", source.shape, step.src_view)
        for piece in step.sends:
            check_boxes(f"step {step.id}, to rank {piece.peer}", step.src_view, piece.boxes)
        return {peer: self.make((size,), source.dtype) for peer, size in sent_volumes(step).items()}

    def paste(self, step: CommStep, arrived: Mapping[int, ShapeValue]) -> ShapeValue:
        """See Moves."""
        assert step.dst_view is not None and step.dst_shape is not None, "only a receiver pastes"
        check_view(f"destination of step {step.id}", step.dst_shape, step.dst_view)
        for piece in step.recvs:
            check_boxes(f"step {step.id}, from rank {piece.peer}", step.dst_view, piece.boxes)
        return self.make(step.dst_shape, torch_dtype(step.dtype))

    def reduce(self, values: Sequence[ShapeValue], combine: Combine) -> ShapeValue:
        """See Moves."""
        return values[0]

    def own(self, value: ShapeValue, into: ShapeValue | None) -> ShapeValue:
        """See Arrays."""
        return self.make(value.shape, value.dtype) if into is None else into

    def counted(self, step: CommStep, rank: int, counts: ShapeValue) -> CommStep:
        """See Arrays; without numbers its load is even."""
        return step

    def accumulate(self, total: ShapeValue | None, value: ShapeValue, owned: bool) -> ShapeValue:
        """See Arrays."""
        wide = self.make(value.shape, torch.float32) if value.dtype in NARROW_TYPES else value
        if total is None:
            return wide
        if total.shape != value.shape:
            raise VerifyError(f"gradients of shapes {total.shape} and {value.shape} are added")
        return total if owned else self.make(total.shape, total.dtype)

    def add_loss(self, total: ShapeValue | None, share: ShapeValue | None) -> ShapeValue:
        """See Arrays."""
        if share is not None and share.numel() != 1:
            raise VerifyError(f"a loss of shape {share.shape} is not a number")
        return total or self.make((), torch.float64)

    def pack(
        self,
        param: str,
        value: ShapeValue | None,
        length: int,
        view: View | None,
        boxes: Boxes | None,
        dtype: str,
    ) -> ShapeValue:
        """See Arrays."""
        made = torch_dtype(dtype)
        if value is None or view is None or boxes is None:
            return self.make((length,), made)
        check_view(param, value.shape, view)
        check_boxes(param, view, boxes, length)
        is_dense = value.stride == dense_stride(value.shape)
        if boxes == (full_box(view),) and is_dense and value.dtype == made:
            return ShapeValue((length,), made, value.block)
        return self.make((length,), made)

    def join(self, rows: Sequence[ShapeValue], dtype: str) -> ShapeValue:
        """See Arrays."""
        return self.make((sum(row.numel() for row in rows),), torch_dtype(dtype))

    def part(self, flat: ShapeValue, start: int, length: int) -> ShapeValue:
        """See Arrays."""
        check_boxes("a flat bucket", flat.shape, [((start, start + length),)])
        return ShapeValue((length,), flat.dtype, flat.block)

    def view(self, param: str, flat: ShapeValue, shape: View) -> ShapeValue:
        """See Arrays."""
        check_view(param, flat.shape, shape)
        return ShapeValue(shape, flat.dtype, flat.block)

    def fill(
        self, param: str, into: ShapeValue | None, flat: ShapeValue, shape: View, view: View, boxes: Boxes
    ) -> ShapeValue:
        """See Arrays."""
        check_view(param, shape, view)
        check_boxes(param, view, boxes, flat.numel())
        return self.make(shape, flat.dtype) if into is None else into


def check_view(where: str, shape: tuple[int, ...], view: tuple[int, ...]) -> None:
    """A view has as many elements as what it shows."""
    if prod(shape) != prod(view):
        raise VerifyError(
            f"{where}: a value of shape {tuple(shape)} can't be viewed as {view}",
            rule="a view has the elements of its value",
        )


def check_boxes(where: str, view: tuple[int, ...], boxes: Sequence[Box], length: int | None = None) -> None:
    """Boxes lie inside their view, and have `length` elements together."""
    for box in boxes:
        if len(box) != len(view) or any(
            not 0 <= low <= high <= size for (low, high), size in zip(box, view, strict=False)
        ):
            raise VerifyError(f"{where}: box {box} lies outside of {view}", rule="boxes lie inside the view")
    total = sum(prod(high - low for low, high in box) for box in boxes)
    if length is not None and total != length:
        raise VerifyError(
            f"{where}: boxes of {total} elements in a piece of {length}",
            rule="the boxes of a gradient piece have its length",
        )
