"""The arithmetic that the executor needs of values, and its form for real tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..base.comm_plan import Box, Combine, CommStep
from . import boxes
from .requests import V
from .sized.counted_step import counted_step

View = tuple[int, ...]
Boxes = tuple[Box, ...]
NARROW_TYPES = (torch.bfloat16, torch.float16)


class Arrays(Protocol[V]):
    """What the executor does with values of kind V. param: what they belong to, for errors."""

    def own(self, value: V, into: V | None) -> V:
        """A copy that this rank may change, in the memory of `into` where one is given."""

    def counted(self, step: CommStep, rank: int, counts: V) -> CommStep:
        """A counted step with the numbers of this rank."""

    def accumulate(self, total: V | None, value: V, owned: bool) -> V:
        """A running sum of gradients. owned: `total` was made here and may be changed."""

    def add_loss(self, total: V | None, share: V | None) -> V:
        """A running sum of loss shares, in double precision; zero from nothing."""

    def pack(
        self, param: str, value: V | None, length: int, view: View | None, boxes: Boxes | None, dtype: str
    ) -> V:
        """Boxes of a value, flat, in the memory of the value where they are all of it; zeros from nothing."""

    def join(self, rows: Sequence[V], dtype: str) -> V:
        """Flat values one after the other, in memory of its own."""

    def part(self, flat: V, start: int, length: int) -> V:
        """Elements of a flat value, in its memory."""

    def view(self, param: str, flat: V, shape: View) -> V:
        """A flat value in another shape, in its memory."""

    def fill(self, param: str, into: V | None, flat: V, shape: View, view: View, boxes: Boxes) -> V:
        """`into` with its boxes overwritten from a flat value; new from zeros where there is none yet."""


class TorchArrays:
    """`Arrays` for tensors on one device, and what moves them between ranks."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def cut(self, step: CommStep, source: Tensor) -> dict[int, Tensor]:
        """What `step` sends, flat, by peer."""
        return boxes.cut(step, source)

    def paste(self, step: CommStep, arrived: Mapping[int, Tensor]) -> Tensor:
        """The destination of `step` from what each peer sent."""
        return boxes.paste(step, arrived, self._empty(step.dtype))

    def reduce(self, values: Sequence[Tensor], combine: Combine) -> Tensor:
        """All values joined elementwise, in order; none of them is changed."""
        total = values[0].clone()
        for value in values[1:]:
            if combine is Combine.MAX:
                torch.maximum(total, value, out=total)
            else:
                total += value
        return total

    def counted(self, step: CommStep, rank: int, counts: Tensor) -> CommStep:
        """See Arrays."""
        return counted_step(step, rank, counts.tolist())

    def own(self, value: Tensor, into: Tensor | None) -> Tensor:
        """See Arrays."""
        return value.clone() if into is None else into.copy_(value)

    def accumulate(self, total: Tensor | None, value: Tensor, owned: bool) -> Tensor:
        """See Arrays; narrow types are summed in float32."""
        wide = value.float() if value.dtype in NARROW_TYPES else value
        if total is None:
            return wide
        return total.add_(wide) if owned else total + wide

    def add_loss(self, total: Tensor | None, share: Tensor | None) -> Tensor:
        """See Arrays."""
        if share is None:
            return self._empty("float64").new_zeros(()) if total is None else total
        return share.double() if total is None else total + share

    def pack(
        self,
        param: str,
        value: Tensor | None,
        length: int,
        view: View | None,
        held: Boxes | None,
        dtype: str,
    ) -> Tensor:
        """See Arrays."""
        if value is None or view is None or held is None:
            return self._empty(dtype).new_zeros(length)
        return boxes.pack(value, view, held).to(getattr(torch, dtype))

    def join(self, rows: Sequence[Tensor], dtype: str) -> Tensor:
        """See Arrays."""
        return torch.cat([self._empty(dtype), *rows])

    def part(self, flat: Tensor, start: int, length: int) -> Tensor:
        """See Arrays."""
        return flat[start : start + length]

    def view(self, param: str, flat: Tensor, shape: View) -> Tensor:
        """See Arrays."""
        return flat.view(shape)

    def fill(
        self, param: str, into: Tensor | None, flat: Tensor, shape: View, view: View, held: Boxes
    ) -> Tensor:
        """See Arrays."""
        result = flat.new_zeros(shape) if into is None else into
        boxes.unpack(flat, result.view(view), held, Combine.COPY)
        return result

    def _empty(self, dtype: str) -> Tensor:
        return torch.empty(0, dtype=getattr(torch, dtype), device=self.device)
