"""Process groups by rank list, created once on every rank in one global order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from ..errors import InternalError


class Groups:
    """All groups of a program. Every rank creates all of them, in the same order, or creation hangs.

    directed: point-to-point traffic gets one group per direction. NCCL orders the messages of a
    pair on one stream, so two ranks that send to each other at the same time would wait for ever.
    """

    def __init__(self, groups: Sequence[tuple[int, ...]], timeout: timedelta, directed: bool) -> None:
        world = tuple(range(dist.get_world_size()))
        self._groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {world: dist.group.WORLD}
        for ranks in groups:
            if len(ranks) > 1 and ranks not in self._groups:
                self._groups[ranks] = dist.new_group(list(ranks), timeout=timeout)
        self._upward: dist.ProcessGroup | None = dist.group.WORLD
        self._downward: dist.ProcessGroup | None = dist.group.WORLD
        if directed and len(world) > 1:
            self._upward = dist.new_group(list(world), timeout=timeout)
            self._downward = dist.new_group(list(world), timeout=timeout)

    def of(self, ranks: tuple[int, ...]) -> dist.ProcessGroup | None:
        """The group of these ranks."""
        if ranks not in self._groups:
            raise InternalError(f"ranks {ranks} have no process group; the artifact doesn't list them")
        return self._groups[ranks]

    def close(self) -> None:
        """Let go of every group, and take the process group down.

        Before the interpreter ends: gloo's threads still release tensors after the last collective,
        which without a running interpreter aborts the process.
        """
        self._groups.clear()
        self._upward = self._downward = None
        if dist.is_initialized():
            dist.destroy_process_group()

    def toward(self, source: int, target: int) -> dist.ProcessGroup | None:
        """The group for messages from one rank to another."""
        return self._upward if source < target else self._downward
