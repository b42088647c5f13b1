"""Starts an artifact's ranks: one rank under torchrun, else the ranks of this host, forked."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ...errors import HspmdError, RunError
from ..engine import Engine
from ..failure import Failure
from ..transport import PeerLost
from .last_words import tell, tell_from_outside, with_cause
from .opening import StartOptions, open_engine, world_size_of
from .processes import run_ranks
from .rank_process import Emit, LocalRank
from .rendezvous import RankPlace, is_under_torchrun, listen, use_loopback

__all__ = ["Job", "StartOptions", "fork_here", "launch"]

Job = Callable[[Engine, Emit], None]


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
        _run_one(Path(directory), job, options, RankPlace.from_environment(), on_record)
        return
    needed = world_size_of(Path(directory))
    if ranks is None:
        fork_here(
            needed,
            lambda place, emit: _run_one(Path(directory), job, options, place, emit),
            options.threads,
            on_record,
        )
    else:
        _fork_some(Path(directory), job, options, _checked(ranks, needed), needed, on_record)


def _run_one(directory: Path, job: Job, options: StartOptions, place: RankPlace, emit: Emit) -> None:
    opened = open_engine(directory, options, place)
    transport = opened.engine.transport
    try:
        job(opened.engine, emit if place.rank == 0 else lambda record: None)
        with transport.call("the end of the run"):
            transport.sum_over_ranks(torch.zeros((), device=transport.device))  # nobody leaves early
    except PeerLost as lost:
        raise with_cause(lost, opened.store) from lost
    except Exception as error:
        what = Failure.of(error).what
        tell(opened.store, f"rank {place.rank} failed: {what}")
        transport.tell_end(what)
        raise
    transport.close()


def fork_here(count: int, run: Callable[[RankPlace, Emit], None], threads: int, on_record: Emit) -> None:
    """Run `run(place, emit)` as each of so many ranks, all on this host, each in a process of its own."""
    with listen() as listener:
        port = listener.getsockname()[1]

        def body(local: LocalRank, emit: Emit) -> None:
            torch.set_num_threads(threads)
            use_loopback()
            own = os.dup(listener.fileno()) if local.rank == 0 else None  # the store closes it itself
            listener.close()
            run(RankPlace(local.rank, count, local.local_index, port=port, listener=own), emit)

        run_ranks(range(count), body, on_record)


def _fork_some(
    directory: Path, job: Job, options: StartOptions, ranks: Sequence[int], count: int, on_record: Emit
) -> None:
    address, port = _master()

    def body(local: LocalRank, emit: Emit) -> None:
        torch.set_num_threads(options.threads)
        place = RankPlace(local.rank, count, local.local_index, address, port)
        _run_one(directory, job, options, place, emit)

    try:
        run_ranks(ranks, body, on_record)
    except HspmdError as error:
        if not isinstance(error, PeerLost):
            tell_from_outside(address, port, error.what)
        raise


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
