"""Sums over groups that are under way while this rank computes."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor


class SumsUnderWay:
    """By key, each started sum's handle and memory, until somebody waits for it."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[dist.Work, Tensor]] = {}

    def start(
        self,
        key: int,
        value: Tensor,
        group: dist.ProcessGroup | None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Let the sum of `value` be made in its memory. on_end: called by the thread that makes it."""
        work = dist.all_reduce(value, group=group, async_op=True)
        assert work is not None, "this rank is in the group"
        if on_end is not None:
            work.get_future().then(lambda _: on_end())
        self._held[key] = (work, value)

    def wait(self, key: int) -> Tensor:
        """The sum, once it is there."""
        work, value = self._held.pop(key)
        work.wait()
        return value

    def forget(self) -> None:
        """A step came to no end: what is under way keeps its memory itself, until it has failed."""
        self._held.clear()
