"""Whole tensors from all ranks' owned pieces, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ..base.comm_plan import Box, box_volume
from ..program.literals import torch_dtype
from ..program.program import Shard
from .shards import place_run
from .transport import Transport

ROOT = 0


@dataclass(frozen=True, slots=True)
class OwnedPiece:
    """What one rank owns of one tensor: boxes in the rank's factored view of the whole."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    view: tuple[int, ...]
    boxes: tuple[Box, ...]

    @classmethod
    def of(cls, shard: Shard) -> OwnedPiece:
        boxes = tuple(whole_box for whole_box, _ in shard.owned)
        return cls(shard.name, shard.dtype, shard.whole_shape, shard.whole_view, boxes)

    @property
    def elements(self) -> int:
        return sum(box_volume(box) for box in self.boxes)


class Collection:
    """The tensors that some ranks hold shards of; every rank makes it and iterates together.

    shards: those of this rank. tensors: the elements that it owns of them, flat; one that is missing
    isn't collected.
    """

    def __init__(self, transport: Transport, shards: Sequence[Shard], tensors: Mapping[str, Tensor]) -> None:
        self._transport = transport
        self._tensors = tensors
        self._shards = {shard.name: shard for shard in shards if shard.name in tensors}
        own = [OwnedPiece.of(shard) for shard in self._shards.values()]
        held = cast(list[list[OwnedPiece]], transport.gather_objects(own))
        self._owners: dict[str, dict[int, OwnedPiece]] = {}
        for rank, pieces in enumerate(held):
            for piece in pieces:
                self._owners.setdefault(piece.name, {})[rank] = piece

    @property
    def tensors(self) -> list[OwnedPiece]:
        """One piece of each tensor for its dtype and whole shape, wide dtypes first, then by name.

        The same on every rank.
        """
        firsts = [next(iter(owners.values())) for owners in self._owners.values()]
        return sorted(firsts, key=lambda piece: (-torch_dtype(piece.dtype).itemsize, piece.name))

    def at_root(self) -> Iterator[tuple[str, Tensor | None]]:
        """Each whole tensor in the order of `tensors`, on the CPU of rank 0; None on the others."""
        for name, whole in self._wholes():
            yield name, None if whole is None else whole.cpu()

    def everywhere(self) -> Iterator[tuple[str, Tensor]]:
        """Each whole tensor in the order of `tensors`, on every rank's CPU."""
        for name, whole in self._wholes():
            piece = next(iter(self._owners[name].values()))
            if whole is None:
                whole = self._new(piece)
            self._transport.broadcast(whole, ROOT)
            yield name, whole.cpu()

    def _wholes(self) -> Iterator[tuple[str, Tensor | None]]:
        for piece in self.tensors:
            if self._transport.rank == ROOT:
                yield piece.name, self._receive(piece.name)
            else:
                self._give(piece.name)
                self._transport.finish_sends()
                yield piece.name, None

    def _give(self, name: str) -> None:
        shard = self._shards.get(name)
        if shard is not None and self._owners[name][self._transport.rank].elements:
            self._transport.send_run(self._own_run(shard), ROOT)

    def _receive(self, name: str) -> Tensor:
        owners = self._owners[name]
        whole = self._new(next(iter(owners.values())))
        for rank, piece in owners.items():
            if not piece.elements:
                continue
            if rank == self._transport.rank:
                row = self._own_run(self._shards[name])
            else:
                row = self._transport.recv_run(piece.elements, whole.dtype, rank)
            place_run(whole, piece.view, piece.boxes, row)
        return whole

    def _own_run(self, shard: Shard) -> Tensor:
        """The owned elements in the dtype of the shard; gradients may be wider."""
        return self._tensors[shard.name].to(torch_dtype(shard.dtype))

    def _new(self, piece: OwnedPiece) -> Tensor:
        return torch.zeros(piece.shape, dtype=torch_dtype(piece.dtype), device=self._transport.device)
