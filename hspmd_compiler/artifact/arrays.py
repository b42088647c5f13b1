"""The arithmetic that executor and drivers need of values, and its form for real tensors."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..comm_plan import Combine, CommStep, GradBucket, GradPiece, ParamBucket
from . import boxes
from .program import ZERO_GRADS, Shard
from .requests import V

NARROW_TYPES = (torch.bfloat16, torch.float16)


class Arrays(Protocol[V]):
    """What can be done with values of kind V."""

    def cut(self, step: CommStep, source: V) -> dict[int, V]:
        """What `step` sends, flat, by peer."""

    def paste(self, step: CommStep, arrived: Mapping[int, V]) -> V:
        """The destination of `step` from what each peer sent."""

    def reduce(self, values: Sequence[V], combine: Combine) -> V:
        """All values joined elementwise, in order; none of them is changed."""

    def own(self, value: V, into: V | None) -> V:
        """A copy that this rank may change, in the memory of `into` where one is given."""

    def accumulate(self, total: V | None, value: V, owned: bool) -> V:
        """A running sum of gradients. owned: `total` was made here and may be changed."""

    def add_loss(self, total: V | None, share: V | None) -> V:
        """A running sum of loss shares, in double precision; zero from nothing."""

    def pack_bucket(self, bucket: GradBucket, grads: Mapping[str, V]) -> V:
        """This rank's contribution to `bucket`, flat, in memory of its own."""

    def unpack_bucket(
        self, bucket: GradBucket, flat: V, shards: Mapping[str, Shard], synced: dict[str, V]
    ) -> None:
        """Put what this rank receives of a reduced bucket into its synchronised gradients."""

    def keep_bucket(
        self,
        bucket: GradBucket,
        grads: Mapping[str, V],
        owned: Container[str],
        shards: Mapping[str, Shard],
        synced: dict[str, V],
    ) -> None:
        """A bucket of this rank alone: its gradients are synchronised. owned: those it may take over."""

    def pack_params(
        self,
        bucket: ParamBucket,
        params: Mapping[str, V],
        stored: Mapping[str, V],
        shards: Mapping[str, Shard],
    ) -> V:
        """What this rank stores of `bucket`, flat, in the type of the bucket."""

    def unpack_params(
        self, bucket: ParamBucket, flat: V, shards: Mapping[str, Shard], params: dict[str, V]
    ) -> None:
        """Put all of a gathered bucket into local tensors, new ones where they are not there."""


def synced_shape(view: tuple[int, ...], shard: Shard) -> tuple[int, ...]:
    """Shape of a synchronised gradient: of the local tensor, or of the row of elements that are kept."""
    return view if shard.zero >= ZERO_GRADS else shard.shape


class TorchArrays:
    """`Arrays` for tensors on one device."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def cut(self, step: CommStep, source: Tensor) -> dict[int, Tensor]:
        """See Arrays."""
        return boxes.cut(step, source)

    def paste(self, step: CommStep, arrived: Mapping[int, Tensor]) -> Tensor:
        """See Arrays."""
        return boxes.paste(step, arrived, self._empty(step.dtype))

    def reduce(self, values: Sequence[Tensor], combine: Combine) -> Tensor:
        """See Arrays."""
        total = values[0].clone()
        for value in values[1:]:
            if combine is Combine.MAX:
                torch.maximum(total, value, out=total)
            else:
                total += value
        return total

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

    def pack_bucket(self, bucket: GradBucket, grads: Mapping[str, Tensor]) -> Tensor:
        """See Arrays."""
        empty = self._empty(bucket.dtype)
        return torch.cat([empty, *(self._packed(piece, grads, empty) for piece in bucket.given)])

    def unpack_bucket(
        self, bucket: GradBucket, flat: Tensor, shards: Mapping[str, Shard], synced: dict[str, Tensor]
    ) -> None:
        """See Arrays."""
        start = 0
        for piece in bucket.kept:
            values = flat[start : start + piece.length]
            start += piece.length
            if piece.dst_boxes is not None and piece.dst_view is not None:
                self._receive(piece, values, shards[piece.param], synced)

    def keep_bucket(
        self,
        bucket: GradBucket,
        grads: Mapping[str, Tensor],
        owned: Container[str],
        shards: Mapping[str, Shard],
        synced: dict[str, Tensor],
    ) -> None:
        """See Arrays."""
        empty = self._empty(bucket.dtype)
        for piece in bucket.pieces:
            if piece.dst_boxes is not None and piece.dst_view is not None:
                values = self._packed(piece, grads, empty)
                mine = values if piece.param in owned else values.clone()
                self._receive(piece, mine, shards[piece.param], synced)

    def pack_params(
        self,
        bucket: ParamBucket,
        params: Mapping[str, Tensor],
        stored: Mapping[str, Tensor],
        shards: Mapping[str, Shard],
    ) -> Tensor:
        """See Arrays."""
        rows = []
        for piece in bucket.pieces:
            if piece.param in stored:
                rows.append(stored[piece.param][slice(*piece.row)].to(getattr(torch, bucket.dtype)))
            else:
                rows.append(boxes.pack(params[piece.param], shards[piece.param].view, piece.own))
        return torch.cat([self._empty(bucket.dtype), *rows])

    def unpack_params(
        self,
        bucket: ParamBucket,
        flat: Tensor,
        shards: Mapping[str, Shard],
        params: dict[str, Tensor],
    ) -> None:
        """See Arrays."""
        start = 0
        for piece in bucket.pieces:
            values = flat[start : start + piece.length]
            start += piece.length
            shard = shards[piece.param]
            if piece.param not in params:
                params[piece.param] = flat.new_zeros(shard.shape)
            boxes.unpack(values, params[piece.param].view(shard.view), piece.boxes, Combine.COPY)

    def _packed(self, piece: GradPiece, grads: Mapping[str, Tensor], empty: Tensor) -> Tensor:
        if piece.src_boxes is None or piece.src_view is None or piece.param not in grads:
            return empty.new_zeros(piece.length)
        return boxes.pack(grads[piece.param], piece.src_view, piece.src_boxes).to(empty.dtype)

    def _receive(self, piece: GradPiece, values: Tensor, shard: Shard, synced: dict[str, Tensor]) -> None:
        assert piece.dst_boxes is not None and piece.dst_view is not None, "only a receiver unpacks"
        shape = synced_shape(piece.dst_view, shard)
        if piece.dst_boxes == (boxes.full_box(piece.dst_view),):
            synced[piece.param] = values.view(shape)
            return
        if piece.param not in synced:
            synced[piece.param] = values.new_zeros(shape)
        target = synced[piece.param].view(piece.dst_view)
        boxes.unpack(values, target, piece.dst_boxes, Combine.COPY)

    def _empty(self, dtype: str) -> Tensor:
        return torch.empty(0, dtype=getattr(torch, dtype), device=self.device)
