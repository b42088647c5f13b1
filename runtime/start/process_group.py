"""The process group that the engines of a process share: the user's, or one of their own.

Each engine has its messages for itself: the first in a group of its own takes that as its world, any other
makes a world beside it, with the backend that its devices need. So neither another engine nor the user's own
calls are met by them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_store

from .roll_call import Store


@dataclass(slots=True)
class _Process:
    """What this process has. stores: where engines of groups of their own meet, kept for later ones.

    own: that group while it is up. engines: that use it. opened: engines so far.
    """

    pid: int = field(default_factory=os.getpid)
    stores: dict[Hashable, Store] = field(default_factory=dict)
    own: dist.ProcessGroup | None = None
    engines: int = 0
    opened: int = 0


_held = _Process()
_inherited: list[_Process] = []


def _process() -> _Process:
    """A forked process begins anew.

    What it has of its parent is kept: to let go of a store ends a process in which its threads are not.
    """
    global _held
    if _held.pid != os.getpid():
        _inherited.append(_held)
        _held = _Process()
    return _held


def rank_in_group() -> tuple[int, int, int] | None:
    """(rank, ranks, index on this host) of this process in the process group that is up, if one is."""
    if not dist.is_initialized():
        return None
    rank, devices = dist.get_rank(), torch.cuda.device_count()
    local = int(os.environ.get("LOCAL_RANK", rank % devices if devices else rank))
    return rank, dist.get_world_size(), local


def meeting_store(place: Hashable, open_store: Callable[[], Store]) -> Store:
    """Where the ranks of the next engine meet; every rank opens its engines in the same order.

    open_store: the first time at a place, where no group is up.
    """
    process = _process()
    if dist.is_initialized() and not _is_own(dist.group.WORLD):
        held = cast(Store, _get_default_store())
    else:
        held = process.stores[place] = process.stores.get(place) or open_store()
    number, process.opened = process.opened, process.opened + 1
    if not number and not dist.is_initialized():
        return held
    return cast(Store, PrefixStore(f"hspmd engine {number}", cast(Any, held)))


@dataclass(frozen=True, slots=True)
class World:
    """The group of all ranks of an engine, see SharedWorld. default: that was up when it was made."""

    group: dist.ProcessGroup
    backend: str
    default: dist.ProcessGroup

    @property
    def is_up(self) -> bool:
        """See SharedWorld."""
        return dist.group.WORLD is self.default

    def leave(self, made: list[dist.ProcessGroup]) -> None:
        """See SharedWorld."""
        process = _process()
        if not self.is_up:
            return
        if _is_own(self.default):
            process.engines -= 1
            if not process.engines:
                process.own = None
                dist.destroy_process_group()
                return
        for group in [*made, *([] if self.group is self.default else [self.group])]:
            with suppress(ValueError):  # a user may have taken it down
                dist.destroy_process_group(group)


def join(backend: str, store: Store, rank: int, world_size: int, timeout: timedelta) -> World:
    """Make the world of an engine; every rank calls it."""
    process = _process()
    if not dist.is_initialized():
        dist.init_process_group(
            backend, store=cast(Any, store), rank=rank, world_size=world_size, timeout=timeout
        )
        own = process.own = cast(dist.ProcessGroup, dist.group.WORLD)
        process.engines = 1
        return World(own, backend, own)
    default = cast(dist.ProcessGroup, dist.group.WORLD)
    process.engines += _is_own(default)
    group = dist.new_group(timeout=timeout, backend=backend)
    return World(cast(dist.ProcessGroup, group), backend, default)


def _is_own(group: dist.ProcessGroup | None) -> bool:
    return group is not None and group is _process().own
