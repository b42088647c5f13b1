"""Whether all ranks read one file, and whether it is as it was written."""

from __future__ import annotations

from typing import cast

from ...errors import RunError
from ..collect import ROOT
from ..transport import Transport
from .safetensors_file import SafetensorsReader

Found = tuple[str, int, str | None]
"""A file's hash and size, and what is wrong with it."""


def check_file(transport: Transport, reader: SafetensorsReader, fix: str) -> None:
    """Every rank has the same file, and rank 0's is as it was written; every rank calls this."""
    damage = reader.damage() if transport.rank == ROOT else None
    own = (reader.written_hash, reader.size, damage)
    first, size, found = cast(list[Found], transport.gather_objects(own))[ROOT]
    if found is not None:
        raise RunError(f"{reader.path} can't be trusted", details=[("reason", found)], fix=fix)
    if own[:2] != (first, size):
        raise RunError(
            f"rank {transport.rank} has another {reader.path} than rank 0",
            rule="all ranks start from the same file",
            fix="copy the file to every host, or keep it where all hosts see it",
        )
