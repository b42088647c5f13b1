"""Where training stands, and whether a program can go on from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from ...base.name_groups import shortened
from ...base.typed import AtLeast, read
from ...errors import RunError
from ..batches.data import DataSource
from ..engine import Engine
from .loaded_names import Shape

VERSION = 1
MOMENT = "optimizer."
"""Begins the names of moments: `optimizer.<moment>/<parameter>`."""
ITERATOR = "iterator"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where training stands. batch: samples of a step. data: state of the data source."""

    version: int
    steps: Annotated[int, AtLeast(0)]
    seed: int
    batch: int
    optimizer: str
    data: dict[str, object]

    @classmethod
    def of(cls, engine: Engine, data: DataSource) -> Progress:
        """A data iterator whose own state JSON would change is brought back by skipping batches."""
        state = data.state_dict()
        if not _survives_json(state):
            state = {**state, ITERATOR: None}
        name = engine.optimizer.config.name.value
        return cls(VERSION, engine.steps, engine.seed, engine.program.batch, name, state)

    @classmethod
    def read(cls, text: str) -> Progress:
        """ValueError where a field is missing, unknown, of another type or too large."""
        try:
            found = json.loads(text)
        except RecursionError as error:
            raise ValueError("nested too deep") from error
        return read(cls, found)


def _survives_json(state: Mapping[str, object]) -> bool:
    """Whether it comes back the same: a tuple would be a list, as in what Python's random keeps."""
    try:
        return bool(json.loads(json.dumps(state, allow_nan=False)) == state)
    except (TypeError, ValueError):
        return False


def _moments_due(engine: Engine, steps: int) -> list[str]:
    """The moments that so many steps have left of what this rank updates."""
    updated = [
        shard.name for shard in engine.shards if shard.name in engine.updated and all(shard.whole_shape)
    ]
    return [f"{MOMENT}{moment}/{name}" for moment in engine.optimizer.moments for name in updated if steps]


def check_goes_on(engine: Engine, progress: Progress, moments: Mapping[str, Shape]) -> None:
    """All that keeps this program from going on, at once."""
    config = engine.optimizer.config
    wanted = {f"{MOMENT}{moment}" for moment in engine.optimizer.moments}
    pairs = [
        ("version", progress.version, VERSION),
        ("optimizer", progress.optimizer, config.name.value),
        ("samples of a step", progress.batch, engine.program.batch),
    ]
    wrong = [(name, f"{held} in the file, {own} here") for name, held, own in pairs if held != own]
    shapes = {shard.name: shard.whole_shape for shard in engine.shards if shard.trainable}
    wrong += [(name, "missing") for name in _moments_due(engine, progress.steps) if name not in moments]
    for name, shape in moments.items():
        kind, _, parameter = name.partition("/")
        if kind not in wanted:
            wrong.append((name, "this optimizer keeps no such moment"))
        elif shapes.get(parameter, shape) != shape:
            wrong.append((name, f"shape {list(shape)}, the parameter has {list(shapes[parameter])}"))
    if wrong:
        raise RunError(
            "training can't go on from this file",
            details=shortened(wrong),
            rule="a file goes on with the same model, optimizer and global batch, under any strategy",
        )
