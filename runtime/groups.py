"""Process groups by rank list, created once on every rank in one global order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol, cast

import torch.distributed as dist

from ..errors import InternalError


class SharedWorld(Protocol):
    """The group of all ranks, which others in the process may have made, too. backend: of its groups."""

    @property
    def group(self) -> dist.ProcessGroup: ...

    @property
    def backend(self) -> str: ...

    @property
    def is_up(self) -> bool:
        """Whether nobody has taken it down."""

    def leave(self, made: list[dist.ProcessGroup]) -> None:
        """Take down what was made of it, and what nobody needs any more."""


class Groups:
    """All groups of a program. Every rank creates all of them, in the same order, or creation hangs.

    directed: point-to-point traffic gets one group per direction. NCCL orders the messages of a
    pair on one stream, so two ranks that send to each other at the same time would wait for ever.
    world: None where the process group that is up is for these groups alone.
    """

    def __init__(
        self,
        groups: Sequence[tuple[int, ...]],
        timeout: timedelta,
        directed: bool,
        world: SharedWorld | None = None,
    ) -> None:
        ranks_of_all = tuple(range(dist.get_world_size()))
        self._shared = world
        self._closed = False
        self._timeout = timeout
        self._made: list[dist.ProcessGroup] = []
        self.world: dist.ProcessGroup | None = dist.group.WORLD if world is None else world.group
        self._groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {ranks_of_all: self.world}
        for ranks in groups:
            if len(ranks) > 1 and ranks not in self._groups:
                self._groups[ranks] = self._new(ranks)
        self._upward = self._downward = self.world
        if directed and len(ranks_of_all) > 1:
            self._upward, self._downward = self._new(ranks_of_all), self._new(ranks_of_all)

    def of(self, ranks: tuple[int, ...]) -> dist.ProcessGroup | None:
        """The group of these ranks."""
        if ranks not in self._groups:
            raise InternalError(f"ranks {ranks} have no process group; the artifact doesn't list them")
        return self._groups[ranks]

    @property
    def is_up(self) -> bool:
        """Whether its messages find a way: nobody has taken the process group down."""
        return not self._closed and (self._shared is None or self._shared.is_up)

    def close(self) -> None:
        """Let go of every group, and take down those that nobody else needs.

        Before the interpreter ends: gloo's threads still release tensors after the last collective,
        which without a running interpreter aborts the process.
        """
        if self._closed:
            return
        self._closed = True
        shared, made = self._shared, [*self._made]
        self._groups.clear()
        self._made.clear()
        self._shared = self.world = self._upward = self._downward = None
        if shared is not None:
            shared.leave(made)
        elif dist.is_initialized():
            dist.destroy_process_group()

    def toward(self, source: int, target: int) -> dist.ProcessGroup | None:
        """The group for messages from one rank to another."""
        return self._upward if source < target else self._downward

    def _new(self, ranks: tuple[int, ...]) -> dist.ProcessGroup | None:
        backend = None if self._shared is None else self._shared.backend
        group = dist.new_group(list(ranks), timeout=self._timeout, backend=backend)
        made = None if group is dist.GroupMember.NON_GROUP_MEMBER else cast(dist.ProcessGroup, group)
        self._made += [] if made is None else [made]
        return made
