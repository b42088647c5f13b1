"""Ranks of several hosts tell each other, through the store, which rank failed first."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ..deadline import within
from ..transport import PeerLost
from .roll_call import Store

FAILED = "hspmd/failed"
HEARING_S = 2.0
MARGIN_S = 3.0
"""For the library to keep its own timeouts: a thread that comes back while a process ends aborts it."""
HEARING = timedelta(seconds=HEARING_S)


def tell(store: Store, text: str) -> None:
    """Leave word of a failure for those that lose contact by it."""
    with suppress(RuntimeError):
        within(HEARING_S, lambda: store.set(FAILED, text))


def tell_from_outside(address: str, port: int, text: str) -> None:
    """`tell` by a launcher, whose rank can't any more; nothing where the store is gone too."""
    with suppress(RuntimeError):
        tell(
            within(HEARING_S + MARGIN_S, lambda: TCPStore(address, port, is_master=False, timeout=HEARING)),
            text,
        )


def with_cause(lost: PeerLost, store: Store) -> PeerLost:
    """The same error with the word that the failed rank, or its launcher, left."""
    try:
        cause = within(HEARING_S + MARGIN_S, lambda: _word(store))
    except dist.DistNetworkError:
        cause = "not known; rank 0, which keeps the ranks' messages, is gone too"
    except RuntimeError:
        return lost
    return PeerLost(lost.what, details=[*lost.details, ("cause", cause)], rule=lost.rule, fix=lost.fix)


def _word(store: Store) -> str:
    store.wait([FAILED], HEARING)
    return store.get(FAILED).decode()
