"""A rank's first parameters: from a safetensors file, or by replaying the model's own initialisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from ...artifact.store import Artifact
from ...errors import ArtifactError, RunError
from ...program.init_program import InitProgram, from_json
from ...program.initial import replay
from ...program.program import Program, Shard
from ..shards import ReadBox, cut_shard, fill_shard
from ..transport import Transport
from .loaded_names import ModelNames, agreeing, match_names
from .safetensors_file import STATE_KEY, WEIGHTS_KEY, SafetensorsReader
from .same_file import check_file


@dataclass(frozen=True, slots=True)
class InitialState:
    """Where parameters come from. weights: a file; else `init` is replayed from `seed`.

    Buffers that a file doesn't have are replayed too. unsaved_too: the file has even the buffers that
    a state dict leaves out.
    """

    init: InitProgram | None
    seed: int = 0
    weights: Path | None = None
    unsaved_too: bool = False

    @classmethod
    def of(cls, artifact: Artifact, seed: int, weights: Path | None) -> InitialState:
        """The user's file before the artifact's own weights before the recorded initialisation."""
        init = None if artifact.init is None else from_json(artifact.init)
        return cls(init, seed, weights or artifact.weights, unsaved_too=weights is None)

    def shards_of(self, program: Program, shards: Sequence[Shard], transport: Transport) -> dict[str, Tensor]:
        """What this rank starts with, by name, as `fill_shard` gives it; every rank calls this."""
        params: dict[str, Tensor] = {}
        if self.weights is not None:
            names = ModelNames.of_all_ranks(program, transport, shards, self.unsaved_too)
            params = _read(self._file(transport), names, shards, transport.device)
        left = [shard for shard in shards if shard.name not in params]
        if left:
            params |= self._replayed(left, transport.device)
        return params

    def _file(self, transport: Transport) -> SafetensorsReader:
        """The file, whole if it says so itself: one from elsewhere has no hash; an artifact's was checked."""
        assert self.weights is not None, "asked only where there is one"
        file = SafetensorsReader(self.weights)
        if STATE_KEY in file.metadata:
            raise RunError(
                f"{file.path} is a state of training", fix=f"go on from it with --resume {file.path}"
            )
        if WEIGHTS_KEY in file.metadata:
            check_file(transport, file, "copy the file again, or write it again with --save")
        return file

    def _replayed(self, shards: Sequence[Shard], device: torch.device) -> dict[str, Tensor]:
        wanted = {shard.name: shard for shard in shards}
        params: dict[str, Tensor] = {}

        def keep(name: str, whole: Tensor) -> None:
            if name in wanted:
                check_made(wanted[name], whole)
                params[name] = cut_shard(wanted[name], whole, device)

        if self.init is not None:
            largest = max((prod(shard.whole_shape) for shard in shards), default=0)
            replay(self.init, self.seed, keep, largest)
        _check_complete(wanted, params)
        return params


def _read(
    file: SafetensorsReader, names: ModelNames, shards: Sequence[Shard], device: torch.device
) -> dict[str, Tensor]:
    found = match_names(names, file.shapes, all_buffers=False)

    def reader(shard: Shard) -> ReadBox:
        view = shard.whole_view
        return agreeing(found[shard.name], lambda name: lambda box: file.read_box(name, view, box))

    return {shard.name: fill_shard(shard, reader(shard), device) for shard in shards if shard.name in found}


def check_made(shard: Shard, whole: Tensor) -> None:
    """Refuse a tensor that the initialisation makes in another shape or type."""
    made = f"{str(whole.dtype).removeprefix('torch.')}{list(whole.shape)}"
    if made != (wanted := f"{shard.dtype}{list(shard.whole_shape)}"):
        raise ArtifactError(
            f"the artifact's initialisation makes another {shard.name}",
            at="init.json: finals",
            details=[("made", made), ("program", wanted)],
            rule="what is initialised has the shape and type of the parameter",
            fix="compile again",
        )


def _check_complete(wanted: Mapping[str, Shard], params: Mapping[str, Tensor]) -> None:
    missing = [name for name in wanted if name not in params]
    if missing:
        raise ArtifactError(
            "the artifact's initialisation doesn't make every parameter",
            details=[(name, "not made") for name in missing],
            fix="compile again, or give all weights by a file",
        )
