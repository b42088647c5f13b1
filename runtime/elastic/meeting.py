"""The groups of a generation, made beside torch.distributed's own, so that making them can be given up.

A group of gloo connects to all its members while it is made, and nothing ends that before its timeout. So a
thread makes them all, by this rank's own connection to the store and under names of the generation; where the
generation ends first, the thread is left behind, with what it holds. Only groups that are complete are shown
to torch.distributed, through a backend of ours that hands out what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Condition, Thread
from typing import Any, cast

import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, TCPStore  # type: ignore[attr-defined]

from ..transport import PeerLost
from .wake import Backend

BACKEND = "hspmd_made"
Ranks = tuple[int, ...]
MakeBackend = Callable[[Any, int, int, timedelta], Backend]


@dataclass(frozen=True, slots=True)
class MeetingPlace:
    """Where a generation meets, and this rank's place in it."""

    generation: int
    rank: int
    size: int
    address: str
    port: int
    timeout: timedelta


def make_gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Backend:
    """A backend that is connected to all members."""
    return dist.ProcessGroupGloo(store, rank, size, timeout)


@dataclass(slots=True)
class Making:
    """A thread that makes the groups of one generation. changed: notified at its end."""

    place: MeetingPlace
    groups: Sequence[Ranks]
    changed: Condition
    make: MakeBackend = make_gloo
    made: dict[Ranks, Backend] = field(default_factory=dict)
    error: Exception | None = None
    is_over: bool = False

    def start(self) -> None:
        """Begin; the thread may be left behind at any time."""
        Thread(target=self._run, name=f"hspmd-meeting-{self.place.generation}", daemon=True).start()

    def _run(self) -> None:
        try:
            self._make_all()
        except Exception as error:
            self.error = error
        with self.changed:
            self.is_over = True
            self.changed.notify_all()

    def _make_all(self) -> None:
        place = self.place
        client = TCPStore(
            place.address, place.port, is_master=False, wait_for_workers=False, timeout=place.timeout
        )
        world = tuple(range(place.size))
        for number, ranks in enumerate(dict.fromkeys((world, *self.groups))):
            if place.rank in ranks:
                store = PrefixStore(f"g{place.generation}/{number}", cast(Any, client))
                self.made[ranks] = self.make(store, ranks.index(place.rank), len(ranks), place.timeout)


def show(made: dict[Ranks, Backend], place: MeetingPlace, devices: Sequence[str] = ("cpu",)) -> None:
    """Make torch.distributed give these groups out: the world now, the others as they are asked for."""

    def handed_out(options: Any, backend_options: Any) -> Backend:
        ranks = tuple(options.global_ranks_in_group) or tuple(range(place.size))
        if ranks not in made:
            raise PeerLost(f"ranks {ranks} have no group in this generation")
        return made[ranks]

    dist.Backend.register_backend(BACKEND, handed_out, extended_api=True, devices=list(devices))
    dist.init_process_group(
        BACKEND, store=HashStore(), rank=place.rank, world_size=place.size, timeout=place.timeout
    )
