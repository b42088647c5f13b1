"""Writes the whole model as one safetensors file with the model's own names."""

from __future__ import annotations

from pathlib import Path

from ..errors import RunError
from .collect import Collection
from .engine import Engine
from .safetensors_file import SafetensorsWriter


def save(engine: Engine, path: Path) -> None:
    """Write parameters and saved buffers to `path` on rank 0's host; every rank calls this.

    Tied parameters are written once, by their canonical name, as transformers does: loading the
    file ties them again. Only one whole tensor is in memory at a time.
    """
    with engine.transport.call("save"):
        collection = engine.saved()
        if engine.rank == 0:
            _write(collection, path)
        else:
            for _ in collection.at_root():
                pass


def check_writable(path: Path, flag: str) -> None:
    """Raise before training where a file could not be written after it."""
    if path.is_dir() or not path.parent.is_dir():
        reason = "it is a directory" if path.is_dir() else f"there is no directory {path.parent}"
        raise RunError(f"{flag} {path} can't be written", details=[("reason", reason)])


def _write(collection: Collection, path: Path) -> None:
    entries = [(piece.name, piece.dtype, piece.shape) for piece in collection.tensors]
    with SafetensorsWriter(path, entries) as writer:
        for name, whole in collection.at_root():
            assert whole is not None, "rank 0 is the root"
            writer.write(name, whole)
