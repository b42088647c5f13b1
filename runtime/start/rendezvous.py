"""How ranks find each other: place from the environment or a launcher, store, roll call, process group."""

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
from torch.distributed import PrefixStore, TCPStore, rendezvous  # type: ignore[attr-defined]

from ...errors import RankLost, RunError
from ...program.program import Op
from ..deadline import NoAnswer, within
from ..device import CPU, RankDevice, find_device
from ..strategies import StrategyProgram
from ..torch_transport import TorchDist
from ..transport import peer_lost_in
from ..watching.post import Mailbox, open_mailbox
from ..watching.watch import Limits, Watch
from .freed_memory import map_large_blocks
from .process_group import join, meeting_store, rank_in_group
from .roll_call import HEARING_SECONDS, Report, Roll, Store, call_roll, shortcuts_of, transfer_orders

LOCAL_HOST = "127.0.0.1"
LIBRARY_S = 2.0
"""What a call into the store may take beyond its own timeout."""
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """start: for all ranks to come up. transfer: for one message or collective, and for a silent rank.

    silent: until a rank that says nothing, or lets others wait, is told of.
    """

    start: timedelta = timedelta(seconds=120)
    transfer: timedelta = timedelta(seconds=300)
    silent: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where one rank stands. listener: descriptor of a socket that already listens for the store."""

    rank: int
    world_size: int
    local_index: int
    address: str = LOCAL_HOST
    port: int = 0
    listener: int | None = None

    @classmethod
    def of_process(cls) -> RankPlace:
        """The place in the process group that is up, else the one that torchrun's variables give."""
        found = rank_in_group()
        return cls.from_environment() if found is None else cls(*found)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> RankPlace:
        """The place that torchrun's variables give."""
        absent = [name for name in NEEDED if name not in environment]
        if absent:
            raise RunError(
                "the environment gives this process no rank",
                details=[("missing", ", ".join(absent))],
                fix="start with torchrun, or with `hspmd run`, which starts the ranks itself",
            )
        try:
            rank, world_size, port = (
                int(environment[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")
            )
            local_index = int(environment.get("LOCAL_RANK", rank))
        except ValueError as error:
            raise RunError(
                "the environment gives this process no rank", details=[("reason", str(error))]
            ) from error
        return cls(rank, world_size, local_index, environment["MASTER_ADDR"], port)


@dataclass(frozen=True, slots=True)
class Connected:
    """A rank that has met the others, and the store they met at."""

    transport: TorchDist
    roll: Roll
    store: Store


def is_under_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher has given this process a rank."""
    return "RANK" in environment and "WORLD_SIZE" in environment


def check_world_size(started: int, needed: int) -> None:
    """A program runs on exactly as many ranks as it has."""
    if started != needed:
        raise RunError(
            f"{started} rank{'s' * (started != 1)} started, the program has {needed}",
            rule="every rank of a program runs, each once",
            fix=f"start {needed} ranks, or compile a strategy with {started} devices",
        )


def connect(
    place: RankPlace, programs: Mapping[str, StrategyProgram], same: Mapping[str, str], timeouts: Timeouts
) -> Connected:
    """Meet the other ranks: RunError before the first step where they don't fit together.

    programs: all that are to run, by strategy; the first one comes first. same: what all ranks must have
    alike, by name.
    """
    used = {name: each.own for name, each in programs.items() if each.own is not None}
    check_world_size(
        place.world_size, len({rank for each in programs.values() for rank in each.members.ranks})
    )
    found = find_device(next(iter(used.values())).device_kind, place.local_index)
    store = _store(place, timeouts)
    report = _report(place, programs, found, same)
    roll = _roll(store, report, place, timeouts)
    for name, each in programs.items():
        each.members.shortcuts = roll.shortcuts_of(name)
    watch = _watch(store, place, roll, timeouts)
    if found.device.type == CPU:
        map_large_blocks()
    else:
        torch.cuda.set_device(found.device)
    with nullcontext() if watch is None else watch.call("start", meets=False):
        transport = _transport(place, [*programs.values()], found, store, watch, timeouts.transfer)
    atexit.register(transport.close)
    return Connected(transport, roll, store)


def _transport(
    place: RankPlace,
    programs: Sequence[StrategyProgram],
    found: RankDevice,
    store: Store,
    watch: Watch | None,
    wait: timedelta,
) -> TorchDist:
    backend = "gloo" if found.device.type == CPU else "nccl"
    with peer_lost_in("setting up the process group"):
        world = join(backend, store, place.rank, place.world_size, wait)
    groups = [each.members.group(ranks) for each in programs for ranks in each.program.groups]
    return TorchDist(found.device, groups, wait, programs[0].members, watch, world)


def listen() -> socket.socket:
    """A socket that listens on a free local port, for the store of rank 0."""
    listener = socket.socket()
    listener.bind((LOCAL_HOST, 0))
    listener.listen(socket.SOMAXCONN)
    return listener


def use_loopback() -> None:
    """Keep gloo's traffic on this host where all ranks are on it."""
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])


def _store(place: RankPlace, timeouts: Timeouts) -> Store:
    where = f"{place.address}:{place.port}"
    with peer_lost_in(f"looking for rank 0 at {where}"):
        try:
            return within(
                timeouts.start.total_seconds() + LIBRARY_S,
                lambda: meeting_store(place, lambda: _open_store(place, timeouts)),
            )
        except NoAnswer as silent:
            raise RunError(
                f"something at {where} takes connections and says nothing",
                details=[("rank", str(place.rank)), ("waited", f"{timeouts.start.total_seconds():.0f} s")],
                rule="rank 0, or torchrun's agent, listens there",
                fix="look which process has the port, or choose another MASTER_PORT",
            ) from silent


def _open_store(place: RankPlace, timeouts: Timeouts) -> Store:
    if is_under_torchrun() and place.listener is None:
        return _of_this_start(next(rendezvous("env://", timeout=timeouts.start))[0])
    store = TCPStore(
        place.address,
        place.port,
        place.world_size,
        is_master=place.rank == 0,
        timeout=timeouts.start,
        wait_for_workers=False,
        master_listen_fd=place.listener if place.rank == 0 else None,
    )
    return cast(Store, store)


def _of_this_start(store: Any) -> Store:
    """Keys of their own for each start: torchrun's agent keeps the store of the ranks that died before."""
    start = os.environ.get(RESTARTS, "0")
    return cast(Store, store if start == "0" else PrefixStore(f"start {start}", store))


def _roll(store: Store, report: Report, place: RankPlace, timeouts: Timeouts) -> Roll:
    longest_s = 2 * timeouts.start.total_seconds() + HEARING_SECONDS + LIBRARY_S

    def call() -> Roll:
        open_mailbox(cast(Mailbox, store), place.rank)
        return call_roll(store, report, place.world_size, timeouts.start)

    try:
        return within(longest_s, call)
    except NoAnswer as silent:
        raise RankLost(
            f"rank 0 at {place.address}:{place.port} says nothing in the roll call",
            details=[("rank", str(place.rank)), ("waited", f"{longest_s:.0f} s")],
            fix="look whether its process is stopped, or its machine gone",
        ) from silent


def _watch(store: Store, place: RankPlace, roll: Roll, timeouts: Timeouts) -> Watch | None:
    """The watch of a rank that has others, by a connection of its own."""
    if place.world_size == 1:
        return None
    end_s = timeouts.transfer.total_seconds()
    limits = Limits(min(timeouts.silent.total_seconds(), end_s / 2), end_s)
    with peer_lost_in("setting up the watch"):
        watch = Watch(cast(Any, store).clone(), place.rank, roll.places, limits)
    watch.start()
    return watch


def _report(
    place: RankPlace, programs: Mapping[str, StrategyProgram], found: RankDevice, same: Mapping[str, str]
) -> Report:
    """Shortcuts and a fixed order of messages are NCCL's; gloo is faster without the first."""
    is_cpu = found.device.type == CPU
    own = {
        name: (each.own, each.members.ranks)
        for name, each in programs.items()
        if each.own is not None and not is_cpu
    }
    return Report(
        place.rank,
        socket.gethostname(),
        place.local_index,
        found.name,
        found.problem,
        same,
        {key: kind for name, (one, _) in own.items() for key, kind in shortcuts_of(one, name).items()},
        transfer_orders(own, Op.SEND),
        transfer_orders(own, Op.RECV),
    )
