"""Ranks of several hosts tell each other, through the store, which rank failed first."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from .roll_call import Store
from .transport import PeerLost

FAILED = "hspmd/failed"
HEARING = timedelta(seconds=2)


def tell(store: Store, text: str) -> None:
    """Leave word of a failure for those that lose contact by it."""
    with suppress(RuntimeError):
        store.set(FAILED, text)


def tell_from_outside(address: str, port: int, text: str) -> None:
    """`tell` by a launcher, whose rank can't any more; nothing where the store is gone too."""
    with suppress(RuntimeError):
        tell(TCPStore(address, port, is_master=False, timeout=HEARING), text)


def with_cause(lost: PeerLost, store: Store) -> PeerLost:
    """The same error with the word that the failed rank, or its launcher, left."""
    try:
        store.wait([FAILED], HEARING)
        cause = store.get(FAILED).decode()
    except dist.DistNetworkError:
        cause = "not known; rank 0, which keeps the ranks' messages, is gone too"
    except RuntimeError:
        return lost
    return PeerLost(lost.what, details=[*lost.details, ("cause", cause)], fix=lost.fix)
