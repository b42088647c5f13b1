"""Starts an artifact's ranks: one rank under torchrun, else the ranks of this host, forked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..artifact import paths
from ..artifact.manifest import Manifest
from ..artifact.store import load, read_manifest
from ..errors import RunError
from .engine import Engine
from .initial_params import InitialState
from .processes import run_ranks
from .rank_process import Emit, LocalRank
from .rendezvous import (
    Place,
    Timeouts,
    check_world_size,
    connect,
    disconnect,
    is_under_torchrun,
    listen,
    use_loopback,
)

Job = Callable[[Engine, Emit], None]


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How ranks come up. seed: of the initialisation. weights: a safetensors file to start from.

    threads: torch threads of each rank started here.
    """

    seed: int = 0
    weights: Path | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    threads: int = 1


def open_engine(
    directory: str | Path, options: StartOptions | None = None, place: Place | None = None
) -> Engine:
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
    engine.places = connected.roll.places
    return engine


def launch(
    directory: str | Path,
    job: Job,
    options: StartOptions | None = None,
    ranks: Sequence[int] | None = None,
    on_record: Emit = lambda record: None,
) -> None:
    """Run `job(engine, emit)` on every rank; what rank 0 emits comes to `on_record` in this process.

    Under torchrun this process is one rank. Otherwise it forks the ranks of this host: all of them,
    or only `ranks`, which then meet those of other hosts at MASTER_ADDR and MASTER_PORT.
    """
    options = options or StartOptions()
    if is_under_torchrun():
        _run_one(Path(directory), job, options, Place.from_environment(), on_record)
        return
    needed = len(read_manifest(Path(directory)).device_kinds)
    if ranks is None:
        _fork_all(Path(directory), job, options, needed, on_record)
    else:
        _fork_some(Path(directory), job, options, _checked(ranks, needed), needed, on_record)


def fingerprint_of(manifest: Manifest) -> str:
    """What all ranks of a run must agree on: the compiled program, model and strategy."""
    entry = manifest.entry(paths.PROGRAM)
    parts = (manifest.model_fingerprint, manifest.strategy_fingerprint, entry.sha256 if entry else "")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _run_one(directory: Path, job: Job, options: StartOptions, place: Place, emit: Emit) -> None:
    engine = open_engine(directory, options, place)
    job(engine, emit if place.rank == 0 else lambda record: None)
    engine.transport.sum_over_ranks(torch.zeros((), device=engine.transport.device))  # nobody leaves early
    disconnect()


def _fork_all(directory: Path, job: Job, options: StartOptions, count: int, on_record: Emit) -> None:
    with listen() as listener:
        port = listener.getsockname()[1]

        def body(local: LocalRank, emit: Emit) -> None:
            torch.set_num_threads(options.threads)
            use_loopback()
            own = os.dup(listener.fileno()) if local.rank == 0 else None  # the store closes it itself
            listener.close()
            place = Place(local.rank, count, local.local_index, port=port, listener=own)
            _run_one(directory, job, options, place, emit)

        run_ranks(range(count), body, on_record)


def _fork_some(
    directory: Path, job: Job, options: StartOptions, ranks: Sequence[int], count: int, on_record: Emit
) -> None:
    address, port = _master()

    def body(local: LocalRank, emit: Emit) -> None:
        torch.set_num_threads(options.threads)
        place = Place(local.rank, count, local.local_index, address, port)
        _run_one(directory, job, options, place, emit)

    run_ranks(ranks, body, on_record)


def _own_place(needed: int) -> Place:
    if needed == 1 and not is_under_torchrun():
        return Place(0, 1, 0)
    return Place.from_environment()


def _checked(ranks: Sequence[int], needed: int) -> list[int]:
    wrong = [
        (f"rank {rank}", f"the program has ranks 0 to {needed - 1}")
        for rank in ranks
        if not 0 <= rank < needed
    ]
    wrong += [(f"rank {rank}", "given more than once") for rank in set(ranks) if list(ranks).count(rank) > 1]
    if wrong or not ranks:
        raise RunError("these ranks can't be started", details=wrong or [("ranks", "none given")])
    return list(ranks)


def _master() -> tuple[str, int]:
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if not address or not port.isdecimal():
        raise RunError(
            "where the ranks of several hosts meet is not given",
            details=[("MASTER_ADDR", str(address)), ("MASTER_PORT", port or "None")],
            rule="a launcher that starts only some ranks has both, the same on each host",
            fix="set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there",
        )
    return address, int(port)
