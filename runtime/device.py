"""The device that a rank runs on, against the kind that its program was compiled for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..base.devices import is_device

CPU, CUDA = "cpu", "cuda"


@dataclass(frozen=True, slots=True)
class RankDevice:
    """A device, its name for people, and why it won't do (empty: it does)."""

    device: torch.device
    name: str
    problem: str = ""


def find_device(kind: str, local_index: int) -> RankDevice:
    """The device of a rank of this host. kind: `cpu` or `cuda`, which a device name may follow."""
    family, _, wanted = kind.partition(" ")
    if family == CPU:
        return RankDevice(torch.device(CPU), CPU)
    if family != CUDA:
        return RankDevice(torch.device(CPU), CPU, f"compiled for {kind}, which isn't known here")
    count = torch.cuda.device_count()
    if local_index >= count:
        found = f"{count} CUDA device{'s' * (count != 1)}" if count else "no CUDA device"
        return RankDevice(torch.device(CPU), CPU, f"compiled for {kind}, but this host has {found}")
    name = torch.cuda.get_device_name(local_index)
    fits = not wanted or is_device(name, wanted)
    problem = "" if fits else f"compiled for {kind}, but its device is {name}"
    return RankDevice(torch.device(CUDA, local_index), name, problem)
