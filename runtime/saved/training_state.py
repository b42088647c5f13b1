"""Everything that training goes on from, in one safetensors file of whole tensors: for any strategy.

Parameters and saved buffers have the model's own names, moments are `optimizer.<moment>/<name>`. Steps, seed
and the position in the data are in the header, with a hash of all of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from ...errors import RunError
from ...program.literals import torch_dtype
from ...program.program import Shard
from ..batches.data import DataSource
from ..collect import ROOT, Collection, OwnedPiece
from ..engine import Engine
from ..shards import ReadBox
from .loaded_names import ModelNames, agreeing, match_names
from .progress import MOMENT, Progress, check_goes_on
from .safetensors_file import STATE_KEY, SafetensorsReader, SafetensorsWriter
from .same_file import check_file

FIX = "name a file that `hspmd run --save-state` wrote for this model"

NamedTensors = tuple[str, Collection]
"""What names begin with, and tensors."""


def save_state(engine: Engine, data: DataSource, path: Path) -> None:
    """Write it on rank 0's host; every rank calls this. One whole tensor at a time is in memory."""
    with engine.transport.call("save_state"):
        _save(engine, data, path)


def _save(engine: Engine, data: DataSource, path: Path) -> None:
    moments = engine.saved_moments()
    parts = [("", engine.saved()), *((f"{MOMENT}{name}/", held) for name, held in moments.items())]
    wholes = _wholes(parts)
    if engine.rank != ROOT:
        for _ in wholes:
            pass
        return
    entries = [(prefix + piece.name, piece.dtype, piece.shape) for prefix, piece in _in_order(parts)]
    metadata = {STATE_KEY: json.dumps(asdict(Progress.of(engine, data)))}
    with SafetensorsWriter(path, entries, metadata) as writer:
        for name, whole in wholes:
            assert whole is not None, "rank 0 is the root"
            writer.write(name, whole)


def _in_order(parts: list[NamedTensors]) -> list[tuple[str, OwnedPiece]]:
    """All tensors, wide dtypes first, as each collection has its own."""
    every = [(prefix, piece) for prefix, held in parts for piece in held.tensors]
    return sorted(every, key=lambda item: -torch_dtype(item[1].dtype).itemsize)


def _wholes(parts: list[NamedTensors]) -> Iterator[tuple[str, Tensor | None]]:
    """Each tensor in that order, where rank 0 runs."""
    walks = {prefix: held.at_root() for prefix, held in parts}
    for prefix, piece in _in_order(parts):
        name, whole = next(walks[prefix])
        assert name == piece.name, "a collection has its tensors in one order"
        yield prefix + name, whole


def load_state(engine: Engine, data: DataSource, path: Path) -> None:
    """Go on from a file; every rank calls this and reads what it needs. Rank 0 checks the hash of all of it.

    The program may be of another strategy, with the same global batch and optimizer.
    """
    with engine.transport.call("load_state"):
        _load(engine, data, path)


def _load(engine: Engine, data: DataSource, path: Path) -> None:
    reader = SafetensorsReader(path)
    progress = _progress(reader)
    check_file(engine.transport, reader, FIX)
    moments = {name: shape for name, shape in reader.shapes.items() if name.startswith(MOMENT)}
    check_goes_on(engine, progress, moments)
    given = {name: shape for name, shape in reader.shapes.items() if name not in moments}
    names = match_names(ModelNames.of_all_ranks(engine.program, engine.transport, engine.shards), given)
    engine.read_parameters(
        lambda shard: agreeing(names[shard.name], lambda name: _boxes(reader, name, shard))
    )

    def moment_of(moment: str, shard: Shard) -> ReadBox | None:
        name = f"{MOMENT}{moment}/{shard.name}"
        return _boxes(reader, name, shard) if name in moments else None

    engine.read_moments(moment_of, progress.steps)
    engine.seed = progress.seed
    data.load_state_dict(progress.data)


def _boxes(reader: SafetensorsReader, name: str, shard: Shard) -> ReadBox:
    return lambda box: reader.read_box(name, shard.whole_view, box)


def _progress(reader: SafetensorsReader) -> Progress:
    text = reader.metadata.get(STATE_KEY)
    if text is None:
        raise RunError(f"{reader.path} holds no state of training", fix=f"{FIX}; weights go to --init")
    try:
        return Progress.read(text)
    except ValueError as error:
        reason = f"{STATE_KEY}: {error}"
        raise RunError(f"{reader.path} can't be read", details=[("reason", reason)], fix=FIX) from error
