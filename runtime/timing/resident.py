"""How much memory a rank holds, and the most it held since it was last asked."""

from __future__ import annotations

import resource
from contextlib import suppress

import torch

PAGE, KIB = resource.getpagesize(), 1024
STATM, CLEAR_REFS, RESET_PEAK = "/proc/self/statm", "/proc/self/clear_refs", b"5"


def held_bytes(device: torch.device) -> int:
    """What this process holds of a CPU's memory, or what its tensors hold of another device's."""
    if device.type != "cpu":
        return torch.cuda.memory_allocated(device)
    try:
        with open(STATM, "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except (OSError, ValueError, IndexError):
        return _peak()


def peak_bytes(device: torch.device) -> int:
    """The most of `held_bytes` since the last call; where a system doesn't tell, since the process began."""
    if device.type != "cpu":
        most = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return most
    most = _peak()
    with suppress(OSError), open(CLEAR_REFS, "wb") as file:
        file.write(RESET_PEAK)
    return most


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
