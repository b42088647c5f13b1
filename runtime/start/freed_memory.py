"""Memory that a step frees stays with the process, for the next step to use again."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Of glibc's <malloc.h>."""
NEVER = -1
"""However much of the heap's end is free, it stays."""
OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process keeps what it frees from now on: with glibc, where the user sets nothing else.

    glibc gives large blocks, and the free end of its heap, back to the system. A step frees all that its
    micro-batches kept, and the next one had the system map and clear it page by page again.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in environment for name in OWN_SETTINGS):
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, NEVER)) and bool(mallopt(M_MMAP_MAX, 0))
