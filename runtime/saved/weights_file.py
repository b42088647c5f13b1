"""Writes the whole model as one safetensors file with the model's own names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...errors import RunError
from ..collect import Collection
from ..engine import Engine
from .safetensors_file import WEIGHTS_KEY, SafetensorsWriter, check_place

VERSION = "1"


def save(engine: Engine, path: Path) -> None:
    """Write parameters and saved buffers to `path` on rank 0's host; every rank calls this.

    Tied parameters are written by each of their names, so that the plain model loads the file strictly. A
    hash of the file is in its header. Only one whole tensor is in memory at a time.
    """
    with engine.transport.call("save"):
        collection = engine.saved()
        if engine.rank == 0:
            _write(collection, engine.program.aliases, path)
        else:
            for _ in collection.at_root():
                pass


def check_writable(path: Path, flag: str) -> None:
    """Raise before training where a file could not be written after it."""
    if path.is_dir() or not path.parent.is_dir():
        reason = "it is a directory" if path.is_dir() else f"there is no directory {path.parent}"
        raise RunError(
            f"{flag} {path} can't be written",
            details=[("reason", reason)],
            rule="whether a file can be written is checked before the work whose result it holds",
            fix="make the directory, or name a file in another one",
        )
    check_place(path)


def _write(collection: Collection, aliases: Mapping[str, str], path: Path) -> None:
    names: dict[str, list[str]] = {piece.name: [piece.name] for piece in collection.tensors}
    for alias, name in aliases.items():
        if name in names and alias != name:
            names[name].append(alias)
    entries = [(name, piece.dtype, piece.shape) for piece in collection.tensors for name in names[piece.name]]
    with SafetensorsWriter(path, entries, {WEIGHTS_KEY: VERSION}) as writer:
        for first, whole in collection.at_root():
            assert whole is not None, "rank 0 is the root"
            for name in names[first]:
                writer.write(name, whole)
