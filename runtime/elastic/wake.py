"""How threads that wait in a collective are woken when its generation is over; one class per backend."""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ..transport import PeerLost

Backend = Any
"""A backend of torch.distributed, such as ProcessGroupGloo."""
POISON_WAIT = timedelta(milliseconds=1)
POISON_TAG = 0x7FFFFFF0
"""A tag that no message of ours has."""
TIMED_OUT = ("Timed out", "Application timeout")
NCCL_ENVIRONMENT = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # else the library ends the process that aborts
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # its monitor thread ends the process even then
}


class Wake(Protocol):
    """Ends what a backend's groups do. `wake` is called by a watchdog thread, the rest by the main one."""

    def prepare(self) -> None:
        """Before the first group is made."""

    def wake(self, backends: Sequence[Backend]) -> None:
        """Every call on them that waits, and every later one, raises, or is known to mean nothing."""

    def check(self) -> None:
        """PeerLost where `wake` was called: what has come since may be anything."""

    def leave(self) -> None:
        """Let go of all groups of this process, woken or not."""

    def joined(self) -> None:
        """The next generation has begun."""


class GlooWake:
    """By poison: a receive that times out closes all connections of its group.

    `abort`, `shutdown` and `set_timeout` of the backend wake nobody (measured).
    """

    def prepare(self) -> None:
        """Nothing."""

    def wake(self, backends: Sequence[Backend]) -> None:
        """See Wake. A peer that is gone fails at once and closes nothing else: then the next one is tried."""
        for backend in backends:
            for peer in range(backend.size()):
                if peer != backend.rank() and _closes(backend, peer):
                    break

    def check(self) -> None:
        """Calls on a closed group raise by themselves."""

    def leave(self) -> None:
        """See Wake."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def joined(self) -> None:
        """Nothing."""


def _closes(backend: Backend, peer: int) -> bool:
    try:
        backend.recv([torch.empty(1)], peer, POISON_TAG).wait(POISON_WAIT)
    except RuntimeError as error:
        return any(text in str(error) for text in TIMED_OUT)
    return False


class NcclWake:
    """By abort of all groups together: one after the other can wait for ever (NCCL 1013).

    After an abort, kernels end as if they had succeeded; so the flag is up before it, and whatever the host
    reads afterwards goes through `check`. Nothing is destroyed: that would wait for peers.
    """

    def __init__(
        self,
        abort_all: Callable[[], None] | None = None,
        environment: MutableMapping[str, str] = os.environ,
    ) -> None:
        self._abort_all = abort_all or _abort_all
        self._environment = environment
        self._aborted = False

    def prepare(self) -> None:
        """See Wake."""
        self._environment.update(NCCL_ENVIRONMENT)

    def wake(self, backends: Sequence[Backend]) -> None:
        """See Wake."""
        self._aborted = True
        if backends:
            self._abort_all()

    def check(self) -> None:
        """See Wake."""
        if self._aborted:
            raise PeerLost(
                "the ranks' generation ended", rule="after an abort, what a collective has given is not used"
            )

    def leave(self) -> None:
        """See Wake. An abort has let go of the groups already."""
        if not self._aborted and dist.is_initialized():
            dist.destroy_process_group()

    def joined(self) -> None:
        """See Wake."""
        self._aborted = False


def _abort_all() -> None:
    """torch wraps the aborts of all groups in one group call of NCCL."""
    dist.distributed_c10d._abort_process_group()
