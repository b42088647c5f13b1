"""The index of a checkpoint: where training stood, which tensors there are, and a hash of every file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Annotated, cast

from ....artifact.json_text import fingerprint
from ....artifact.manifest import FileEntry
from ....base.dtypes import BYTES
from ....base.limits import LARGEST, MOST_DEVICES
from ....base.plain_content import text_of
from ....base.typed import AtLeast, ValueRule, read
from ....errors import RunError
from ....program.program import Program, Shard
from ...engine import Engine
from ...transport import Transport
from ..loaded_names import Shape
from ..progress import MOMENT, Progress
from .folders import INDEX, sync_folder
from .random_state import RandomState

FORMAT, SCHEMA = "hspmd-checkpoint", 1
OWN_HASH = "sha256"
INDEX_BYTES = 1 << 28
RANK_FILE = re.compile(r"rank-[0-9]{4,5}\.safetensors", re.ASCII)
COPY_AGAIN = "copy the whole folder again, or go on from an earlier checkpoint"


def rank_file(rank: int) -> str:
    """The file of what one rank owned."""
    return f"rank-{rank:04d}.safetensors"


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A parameter or buffer. moments: those that were kept for it, by torch's names."""

    dtype: Annotated[str, ValueRule(lambda name: name in BYTES, f"one of {', '.join(BYTES)}")]
    shape: Annotated[
        tuple[Annotated[int, AtLeast(0)], ...],
        ValueRule(lambda shape: prod(shape) <= LARGEST, "fewer elements"),
    ]
    trainable: bool
    is_buffer: bool
    moments: tuple[str, ...]

    @classmethod
    def of(cls, shard: Shard, moments: Sequence[str]) -> SavedTensor:
        return cls(shard.dtype, shard.whole_shape, shard.trainable, shard.is_buffer, tuple(moments))


SavedTensors = dict[str, SavedTensor]


def saved_tensors(engine: Engine) -> dict[str, SavedTensor]:
    """What this rank holds of tensors that a checkpoint has, by name."""
    moments = engine.optimizer.moments
    return {
        shard.name: SavedTensor.of(
            shard, moments if shard.name in engine.updated and all(shard.whole_shape) else ()
        )
        for shard in engine.shards
    }


def of_all_ranks(transport: Transport, own: SavedTensors) -> SavedTensors:
    """The tensors of all ranks, by name; every rank calls this.

    A rank that holds none of a parameter's elements doesn't train it, and knows of no moments.
    """
    found: SavedTensors = {}
    for held in cast(list[SavedTensors], transport.gather_objects(own)):
        for name, tensor in held.items():
            if name not in found or tensor.moments:
                found[name] = tensor
    return dict(sorted(found.items()))


def fingerprint_tensors(tensors: Mapping[str, SavedTensor], program: Program) -> str:
    """A hash that two programs share exactly if they train the same parameters beside the same buffers."""
    rows = [
        [name, each.dtype, list(each.shape), each.trainable, each.is_buffer]
        for name, each in sorted(tensors.items())
    ]
    return fingerprint({"tensors": rows, "aliases": dict(program.aliases)})


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIndex:
    """What its file holds, beside a hash of all of it.

    ranks: of the run that wrote it. optimizer: all its options. model_fingerprint: see `fingerprint_tensors`.
    files: by name, one for each rank that owned anything.
    """

    format: Annotated[str, ValueRule(lambda text: text == FORMAT, FORMAT)] = FORMAT
    schema: Annotated[
        int, ValueRule(lambda number: number == SCHEMA, f"{SCHEMA}, which this version reads")
    ] = SCHEMA
    ranks: Annotated[int, ValueRule(lambda count: 1 <= count <= MOST_DEVICES, f"1 to {MOST_DEVICES:,} ranks")]
    progress: Progress
    lr: float
    random: RandomState
    optimizer: dict[str, object]
    model_fingerprint: str
    tensors: SavedTensors
    files: dict[str, FileEntry]

    @property
    def moment_shapes(self) -> dict[str, Shape]:
        """Shapes of moments as the names of saved tensors are."""
        return {
            f"{MOMENT}{moment}/{name}": tensor.shape
            for name, tensor in self.tensors.items()
            for moment in tensor.moments
        }

    def problems(self) -> list[tuple[str, str]]:
        """What doesn't fit together, as (place, text)."""
        names = {rank_file(rank) for rank in range(self.ranks)}
        found = [(f"files.{name}", "no file of a rank of it") for name in self.files if name not in names]
        return found + [
            (f"tensors.{name}", "a tensor that isn't trained has no moments")
            for name, tensor in self.tensors.items()
            if tensor.moments and not tensor.trainable
        ]


def write_index(folder: Path, index: CheckpointIndex) -> None:
    """Write it and have it on the disk, with the names of all files of the folder."""
    body = asdict(index)
    body[OWN_HASH] = fingerprint(body)
    with (folder / INDEX).open("w", encoding="utf-8") as file:
        json.dump(body, file, indent=1, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)


def read_index(folder: Path) -> tuple[CheckpointIndex, str]:
    """The index of a checkpoint and its hash; RunError where it is missing, damaged or none of ours."""
    path = folder / INDEX
    try:
        body = json.loads(text_of(path, INDEX_BYTES))
        written = body.pop(OWN_HASH, None) if isinstance(body, dict) else None
        if not isinstance(written, str) or written != fingerprint(body):
            raise ValueError("its content doesn't match its hash")
        index = read(CheckpointIndex, body)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:  # of JSON, of UTF-8, of what doesn't fit
        raise _unusable(path, str(error).splitlines()[0] if str(error) else "nested too deep") from error
    if problems := index.problems():
        raise _unusable(path, "; ".join(f"{place}: {text}" for place, text in problems[:5]))
    return index, written


def _unusable(path: Path, reason: str) -> RunError:
    return RunError(f"{path} can't be used", details=[("reason", reason)], fix=COPY_AGAIN)
