"""One rank made ready: its artifact read, the others met, its parameters in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ...artifact.bundle import folder_of, read_bundle
from ...artifact.bundle_paths import BUNDLE, is_bundle
from ...artifact.manifest import Manifest
from ...artifact.store import Artifact, load, read_manifest
from ...options import PLAIN, Arithmetic
from ...program.program import Program
from ..device import CPU
from ..engine import Engine
from ..members import ProgramMembers
from ..saved.initial_params import InitialState
from ..strategies import Strategies, StrategyProgram
from ..switching.stages import ROUND_BYTES
from ..timing.resident import held_bytes
from .freed_memory import keep_freed_memory
from .process_group import rank_in_group
from .rendezvous import RankPlace, Timeouts, check_world_size, connect, is_under_torchrun
from .roll_call import Store
from .same_start import files_digest, same_start


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How ranks come up. seed: of the initialisation and of dropout.

    weights: a safetensors file to start from. threads: torch threads of each rank started here.
    flags: what else all ranks must be started with alike, by name. check: looks at the program of a rank
    before it meets the others. strategy: of a bundle, to begin with; its first by default. round_bytes: of
    the messages of a rank in one round of a switch. arithmetic: how they compute.
    """

    seed: int = 0
    weights: Path | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    threads: int = 1
    flags: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Program, int], None] | None = None
    strategy: str | None = None
    round_bytes: int = ROUND_BYTES
    arithmetic: Arithmetic = PLAIN


@dataclass(frozen=True, slots=True)
class Opened:
    """An engine, and the store at which its ranks met."""

    engine: Engine
    store: Store


@dataclass(frozen=True, slots=True)
class _Found:
    """What a process has read of a directory. first: the artifact of the strategy that it begins with.

    manifests: by strategy. common: what else all ranks must have read alike.
    """

    strategies: Strategies
    first: Artifact
    manifests: Mapping[str, Manifest]
    common: Mapping[str, str]

    @property
    def start(self) -> str:
        """The strategy that it begins with."""
        return next(iter(self.strategies.programs))


def world_size_of(directory: Path) -> int:
    """The processes that run an artifact, or a bundle of several strategies."""
    if is_bundle(directory):
        return len(read_bundle(directory).devices)
    return len(read_manifest(directory).device_kinds)


def open_engine(
    directory: str | Path, options: StartOptions | None = None, place: RankPlace | None = None
) -> Opened:
    """This process's rank, connected to the others; place: from torchrun's environment by default.

    A program of one rank needs no environment.
    """
    options = options or StartOptions()
    path = Path(directory)
    needed = world_size_of(path)
    place = place or _own_place(needed)
    check_world_size(place.world_size, needed)
    found = _read_bundle(path, options, place.rank) if is_bundle(path) else _read(path, options, place.rank)
    programs = found.strategies.programs
    own = programs[found.start]
    for each in programs.values():
        if each.own is not None and options.check is not None:
            options.check(each.program, each.own.rank)
    initial = InitialState.of(found.first, options.seed, options.weights)
    same = {**found.common, **_same(found), **_flags(options, found.start)}
    connected = connect(place, programs, same, options.timeouts)
    held = held_bytes(connected.transport.device)
    try:
        with connected.transport.call("load", meets=False):
            shards = [] if own.own is None else own.own.shards
            params = initial.shards_of(own.program, shards, connected.transport)
        engine = Engine(
            own.program,
            found.first.manifest.optimizer,
            connected.transport,
            params,
            found.strategies,
            found.start,
            options.arithmetic,
        )
    except Exception:
        connected.transport.close()  # what was wrong with a file can be mended, and the engine opened again
        raise
    engine.seed = options.seed
    if connected.transport.device.type == CPU:
        engine.transaction.first_end = keep_freed_memory
    engine.places, engine.held_before = connected.roll.places, held
    return Opened(engine, connected.store)


def _read(path: Path, options: StartOptions, rank: int) -> _Found:
    artifact = load(folder_of(path, options.strategy), rank)
    only = StrategyProgram.only(artifact.program, rank)
    return _Found(Strategies({"": only}), artifact, {"": artifact.manifest}, {})


def _read_bundle(path: Path, options: StartOptions, world_rank: int) -> _Found:
    """All strategies, the one to begin with first; of one that leaves this process idle any rank serves."""
    bundle = read_bundle(path)
    names = list(bundle.strategies)
    start = names[0] if options.strategy is None else options.strategy
    bundle.devices_of(start)
    programs, artifacts = {}, {}
    for name in (start, *(each for each in names if each != start)):
        rank = bundle.rank_at(name, world_rank)
        artifact = artifacts[name] = bundle.artifact(name, rank or 0)
        own = None if rank is None else artifact.rank_program(rank)
        programs[name] = StrategyProgram(artifact.program, own, ProgramMembers(bundle.world_rank_of(name)))
    strategies = Strategies(programs, cache(bundle.plan), options.round_bytes, bundle.loss)
    manifests = {name: artifact.manifest for name, artifact in artifacts.items()}
    return _Found(strategies, artifacts[start], manifests, {BUNDLE: files_digest([path / BUNDLE])})


def _same(found: _Found) -> dict[str, str]:
    """What all ranks must have alike of each strategy."""
    return {
        f"{name}: {what}" if name else what: text
        for name, manifest in found.manifests.items()
        for what, text in same_start(manifest, found.strategies.programs[name].own).items()
    }


def _flags(options: StartOptions, start: str) -> dict[str, str]:
    """Groups are made in the order of the strategies, so that all begin with the same one."""
    flags = {"seed": str(options.seed), "round of a switch": str(options.round_bytes)}
    flags |= {**options.arithmetic.flags, **options.flags}
    flags |= {"first strategy": start} if start else {}
    return flags if options.weights is None else flags | {"--init": files_digest([options.weights])}


def _own_place(needed: int) -> RankPlace:
    if needed == 1 and not is_under_torchrun() and rank_in_group() is None:
        return RankPlace(0, 1, 0)
    return RankPlace.of_process()
