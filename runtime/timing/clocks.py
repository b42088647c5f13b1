"""The clocks of all ranks against that of rank 0."""

from __future__ import annotations

import os
from collections.abc import Iterable
from time import perf_counter

import torch

from ..transport import Transport

BOOT, TIME_SPACE = "/proc/sys/kernel/random/boot_id", "/proc/self/ns/time"
ROUNDS = 20
ROOT = 0


def clock_offset(transport: Transport) -> float:
    """Seconds to add to this rank's `perf_counter` for that of rank 0; every rank calls this.

    Processes of one machine read one clock. Others ask rank 0 some times, and the answer that took least
    counts: it lies in the middle of that time, give or take half of it.
    """
    machines = transport.gather_objects(_machine())
    own = 0.0
    for rank, machine in enumerate(machines):
        if rank == ROOT or (machine and machine == machines[ROOT]):
            continue
        if transport.rank == rank:
            own = offset_of(_ask(transport) for _ in range(ROUNDS))
        elif transport.rank == ROOT:
            for _ in range(ROUNDS):
                _tell(transport, rank)
    return own


def offset_of(rounds: Iterable[tuple[float, float, float]]) -> float:
    """What to add to a clock, from (asked, the other clock's answer, heard) of some rounds."""
    asked, other, heard = min(rounds, key=lambda each: each[2] - each[0])
    return other - (asked + heard) / 2


def _machine() -> str:
    """What processes have alike that read one clock; empty where that is not known."""
    try:
        with open(BOOT, encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink(TIME_SPACE)}"
    except OSError:
        return ""


def _ask(transport: Transport) -> tuple[float, float, float]:
    start = perf_counter()
    transport.send_run(torch.zeros(1, dtype=torch.float64, device=transport.device), ROOT)
    answer = float(transport.recv_run(1, torch.float64, ROOT))
    end = perf_counter()
    transport.finish_sends()
    return start, answer, end


def _tell(transport: Transport, rank: int) -> None:
    float(transport.recv_run(1, torch.float64, rank))
    now = torch.tensor([perf_counter()], dtype=torch.float64, device=transport.device)
    transport.send_run(now, rank)
    transport.finish_sends()
