"""One rank made ready: its artifact read, the others met, its parameters in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...artifact.store import load, read_manifest
from ...program.program import Program
from ..engine import Engine
from ..saved.initial_params import InitialState
from ..timing.resident import held_bytes
from .rendezvous import RankPlace, Timeouts, check_world_size, connect, is_under_torchrun
from .roll_call import Store
from .same_start import files_digest, same_start


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How ranks come up. seed: of the initialisation and of dropout.

    weights: a safetensors file to start from. threads: torch threads of each rank started here.
    flags: what else all ranks must be started with alike, by name. check: looks at the program of a rank
    before it meets the others.
    """

    seed: int = 0
    weights: Path | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    threads: int = 1
    flags: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Program, int], None] | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """An engine, and the store at which its ranks met."""

    engine: Engine
    store: Store


def open_engine(
    directory: str | Path, options: StartOptions | None = None, place: RankPlace | None = None
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
    if options.check is not None:
        options.check(artifact.program, place.rank)
    initial = InitialState.of(artifact, options.seed, options.weights)
    same = same_start(manifest, own, _flags(options))
    connected = connect(place, artifact.program, own, same, options.timeouts)
    held = held_bytes(connected.transport.device)
    try:
        with connected.transport.call("load", meets=False):
            params = initial.shards_of(artifact.program, own.shards, connected.transport)
        engine = Engine(artifact.program, manifest.optimizer, connected.transport, params)
    except Exception:
        connected.transport.close()  # what was wrong with a file can be mended, and the engine opened again
        raise
    engine.seed = options.seed
    engine.places, engine.held_before = connected.roll.places, held
    return Opened(engine, connected.store)


def _flags(options: StartOptions) -> dict[str, str]:
    flags = {"seed": str(options.seed), **options.flags}
    return flags if options.weights is None else flags | {"--init": files_digest([options.weights])}


def _own_place(needed: int) -> RankPlace:
    if needed == 1 and not is_under_torchrun():
        return RankPlace(0, 1, 0)
    return RankPlace.from_environment()
