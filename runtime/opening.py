"""One rank made ready: its artifact read, the others met, its parameters in place."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from ..artifact import paths
from ..artifact.manifest import Manifest
from ..artifact.store import load, read_manifest
from .engine import Engine
from .initial_params import InitialState
from .rendezvous import Place, Timeouts, check_world_size, connect, is_under_torchrun
from .roll_call import Store


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How ranks come up. seed: of the initialisation and of dropout.

    weights: a safetensors file to start from. threads: torch threads of each rank started here.
    """

    seed: int = 0
    weights: Path | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Opened:
    """An engine, and the store at which its ranks met."""

    engine: Engine
    store: Store


def open_engine(
    directory: str | Path, options: StartOptions | None = None, place: Place | None = None
) -> Opened:
    """This process's rank, connected to the others; place: from torchrun's environment by default.

    A program of one rank needs no environment.
    """
    options = options or StartOptions()
    path = Path(directory)
    manifest = read_manifest(path)
    needed = len(manifest.device_kinds)
    place = place or _own_place(needed)
    check_world_size(place.world_size, needed)
    artifact = load(path, place.rank)
    own = artifact.rank_program(place.rank)
    connected = connect(place, artifact.program, own, fingerprint_of(manifest), options.timeouts)
    initial = InitialState.of(artifact, options.seed, options.weights)
    params = initial.shards_of(artifact.program, own.shards, connected.transport)
    engine = Engine(artifact.program, manifest.optimizer, connected.transport, params)
    engine.seed = options.seed
    engine.places = connected.roll.places
    return Opened(engine, connected.store)


def fingerprint_of(manifest: Manifest) -> str:
    """What all ranks of a run must agree on: the compiled program, model and strategy."""
    entry = manifest.entry(paths.PROGRAM)
    parts = (manifest.model_fingerprint, manifest.strategy_fingerprint, entry.sha256 if entry else "")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _own_place(needed: int) -> Place:
    if needed == 1 and not is_under_torchrun():
        return Place(0, 1, 0)
    return Place.from_environment()
