"""Kinds of devices, by the names that people write."""

from __future__ import annotations

from enum import StrEnum


def family_of(kind: str) -> str:
    """`cuda` of `cuda NVIDIA H100`."""
    return kind.partition(" ")[0]


class DeviceKind(StrEnum):
    """What a device's program is compiled for."""

    CPU = "cpu"
    CUDA = "cuda"
