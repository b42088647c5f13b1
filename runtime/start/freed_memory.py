"""Memory that a step frees stays with the process, for the next step to use again."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
"""Of glibc's <malloc.h>."""
NEVER = -1
"""However much of the heap's end is free, it stays."""
LARGE_BYTES = 128 << 10
"""glibc's own limit of what is mapped apart, which rises with what is freed until somebody sets it."""
OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def map_large_blocks(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether large blocks lie outside the heap from now on: with glibc, where the user sets nothing else.

    A rank calls it before it has parameters, and `keep_freed_memory` behind its first step. What lives as
    long as the run, moments and buckets of gradients too, then leaves no gaps in the heap, in which values of
    steps come and go; and what loading frees goes back to the system.
    """
    return _set(environment, [(M_MMAP_THRESHOLD, LARGE_BYTES)])


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process keeps what it frees from now on: with glibc, where the user sets nothing else.

    glibc gives large blocks, and the free end of its heap, back to the system. A step frees all that its
    micro-batches kept, and the next one had the system map and clear it page by page again.
    """
    return _set(environment, [(M_TRIM_THRESHOLD, NEVER), (M_MMAP_MAX, 0)])


def _set(environment: Mapping[str, str], settings: list[tuple[int, int]]) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in environment for name in OWN_SETTINGS):
        return False
    return all(mallopt(name, value) for name, value in settings)
