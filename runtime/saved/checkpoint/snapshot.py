"""What a rank owns, as it stands between two steps, and the file of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ....artifact.manifest import FileEntry
from ....program.literals import torch_dtype
from ....program.program import Shard
from ...engine import Engine
from ..progress import Progress
from ..safetensors_file import SafetensorsWriter
from .index import rank_file
from .pieces import PIECES_KEY, Pieces, PieceTable, SavedBoxes, stored_name
from .random_state import RandomState


@dataclass(slots=True)
class Snapshot:
    """A copy on the CPU of all that a rank writes. tensors: flat, by their names in the file."""

    rank: int
    progress: Progress
    random: RandomState
    lr: float
    pieces: Pieces
    tensors: dict[str, Tensor]

    @property
    def size_bytes(self) -> int:
        """Memory that it takes until it is written; each tensor is let go of as soon as it is."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def take_snapshot(engine: Engine, progress: Progress) -> Snapshot:
    """Copy what this rank owns: values, and moments of what it trains; nobody else is asked."""
    own = {shard.name: shard for shard in engine.shards if shard.owned}
    tensors = {name: _copy(value) for name, value in engine.owned_values().items() if name in own}
    for moment, held in engine.owned_moments().items():
        for name in sorted(engine.updated & own.keys()):
            value = held.get(name)
            made = _zeros(own[name], tensors[name]) if value is None else _copy(value)
            tensors[stored_name(moment, name)] = made
    pieces = {name: SavedBoxes.owned_by(shard) for name, shard in own.items()}
    kept = {name: piece for name, piece in pieces.items() if piece.elements}
    tensors = {name: value for name, value in tensors.items() if value.numel()}
    return Snapshot(engine.transport.rank, progress, RandomState.here(), engine.lr, kept, tensors)


def _copy(value: Tensor) -> Tensor:
    return value.detach().to("cpu", copy=True)


def _zeros(shard: Shard, value: Tensor) -> Tensor:
    """A moment that no step has made yet."""
    return torch.zeros(value.numel(), dtype=torch_dtype(shard.dtype))


def write_snapshot(
    folder: Path, snapshot: Snapshot, is_given_up: Callable[[], bool] = lambda: False
) -> dict[str, FileEntry]:
    """Write a rank's file, and have it on the disk; its name, size and hash. The snapshot is used up.

    Nothing where the rank owns nothing, or where all is given up.
    """
    if is_given_up():
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    if not snapshot.tensors:
        return {}
    names = sorted(snapshot.tensors, key=lambda name: (-snapshot.tensors[name].element_size(), name))
    entries = [
        (name, _dtype_name(snapshot.tensors[name]), tuple(snapshot.tensors[name].shape)) for name in names
    ]
    path = folder / rank_file(snapshot.rank)
    metadata = {PIECES_KEY: PieceTable(snapshot.pieces).text()}
    with SafetensorsWriter(path, entries, metadata, hashes_itself=False) as writer:
        for name in names:
            if is_given_up():
                return {}
            writer.write(name, snapshot.tensors.pop(name))
    return {path.name: FileEntry(path.stat().st_size, writer.sha256)}


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
