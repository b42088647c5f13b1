"""What is said where no program fits the memory of the machines."""

from __future__ import annotations

from ..errors import HspmdError
from .machine import SearchMachine
from .space.search_space import SearchSpace

GIB = 1 << 30


class NothingFits(HspmdError):
    """No program of the space fits."""


def refused(held: tuple[int, ...], machine: SearchMachine, space: SearchSpace) -> NothingFits:
    """The error: by how much the program that holds least misses, and what would help."""
    pairs = list(zip(held, machine.lanes, strict=True))
    worst, lane = max(pairs, key=lambda pair: pair[0] / pair[1].capacity_bytes)
    params = sum(
        _bytes(info.shape, info.dtype.itemsize) for info in space.graph.params.values() if info.trainable
    )
    missing = worst - lane.capacity_bytes
    return NothingFits(
        "no program fits the memory of these devices",
        details=[
            (
                "least",
                f"{worst / GIB:.2f} GiB on one device, of which {lane.capacity_bytes / GIB:.2f} can be used",
            ),
            ("missing", f"{missing / GIB:.2f} GiB a device"),
            ("parameters", f"{params / GIB:.2f} GiB in all, without gradients and optimizer state"),
        ],
        rule="what each device holds, parameters, gradients, optimizer state and what backward reads, fits"
        " its memory; ZeRO levels, layouts and recomputing were tried",
        fix="take more devices, or smaller micro-batches; train in bfloat16, or with an optimizer of less"
        " state",
    )


def _bytes(shape: tuple[int, ...], size: int) -> int:
    for length in shape:
        size *= length
    return size
