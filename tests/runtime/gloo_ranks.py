"""Connected ranks over gloo, each a process that runs a check of its transport."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from hspmd_compiler.runtime.members import ProgramMembers
from hspmd_compiler.runtime.start.processes import run_ranks
from hspmd_compiler.runtime.start.rank_process import Emit, LocalRank
from hspmd_compiler.runtime.start.rendezvous import listen, use_loopback
from hspmd_compiler.runtime.torch_transport import TorchDist


def on_ranks(
    count: int,
    groups: Sequence[tuple[int, ...]],
    check: Callable[[TorchDist], None],
    shortcuts: frozenset[int] = frozenset(),
) -> None:
    """Run `check(transport)` on as many connected ranks."""
    with listen() as listener:
        port = listener.getsockname()[1]

        def body(local: LocalRank, emit: Emit) -> None:
            torch.set_num_threads(1)
            use_loopback()
            own = os.dup(listener.fileno()) if local.rank == 0 else None
            wait = timedelta(seconds=20)
            store = dist.TCPStore(  # type: ignore[attr-defined]
                "127.0.0.1", port, count, local.rank == 0, wait, False, master_listen_fd=own
            )
            dist.init_process_group("gloo", store=store, rank=local.rank, world_size=count, timeout=wait)
            members = ProgramMembers.all_of(count, shortcuts)
            check(TorchDist(torch.device("cpu"), groups, wait, members))
            dist.barrier()
            dist.destroy_process_group()

        run_ranks(tuple(range(count)), body, lambda record: None)
