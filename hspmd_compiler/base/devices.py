"""Kinds of devices, by the names that people write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum


def family_of(kind: str) -> str:
    """`cuda` of `cuda NVIDIA H100`."""
    return kind.partition(" ")[0]


class DeviceKind(StrEnum):
    """What a device's program is compiled for."""

    CPU = "cpu"
    CUDA = "cuda"


TORCH_NAMES: Mapping[str, str] = {
    "P100-SXM2-16GB": "Tesla P100-SXM2-16GB",
    "V100-SXM2-16GB": "Tesla V100-SXM2-16GB",
    "V100-SXM2-32GB": "Tesla V100-SXM2-32GB",
    "V100-PCIe-16GB": "Tesla V100-PCIE-16GB",
    "T4": "Tesla T4",
    "TITAN-RTX": "NVIDIA TITAN RTX",
    "RTX-2080Ti": "NVIDIA GeForce RTX 2080 Ti",
    "RTX-3080Ti": "NVIDIA GeForce RTX 3080 Ti",
    "RTX-3090": "NVIDIA GeForce RTX 3090",
    "RTX-4090": "NVIDIA GeForce RTX 4090",
    "A10": "NVIDIA A10",
    "RTX-A6000": "NVIDIA RTX A6000",
    "A100-SXM4-40GB": "NVIDIA A100-SXM4-40GB",
    "A100-SXM4-80GB": "NVIDIA A100-SXM4-80GB",
    "A100-PCIe-80GB": "NVIDIA A100 80GB PCIe",
    "A800-SXM4-80GB": "NVIDIA A800-SXM4-80GB",
    "L4": "NVIDIA L4",
    "L40S": "NVIDIA L40S",
    "H100-SXM5-80GB": "NVIDIA H100 80GB HBM3",
    "H100-PCIe-80GB": "NVIDIA H100 PCIe",
    "H800-SXM5-80GB": "NVIDIA H800",
    "H200-SXM-141GB": "NVIDIA H200",
    "GH200-96GB": "NVIDIA GH200 480GB",
    "H20-96GB": "NVIDIA H20",
    "MI250": "AMD Instinct MI250X / MI250",
    "MI300X": "AMD Instinct MI300X",
}
"""What `torch.cuda.get_device_name` calls the devices of the catalogue."""


def is_device(found: str, wanted: str) -> bool:
    """Whether a device of this name is the one that is wanted, which may be told by a part of its name.

    Each may be torch's name or the catalogue's. A part consists of whole words: an H200 is no `H20`.
    """
    wanted = TORCH_NAMES.get(wanted, wanted)
    part = re.compile(rf"(?<![a-z0-9]){re.escape(wanted.lower())}(?![a-z0-9])")
    return any(part.search(name.lower()) for name in (found, TORCH_NAMES.get(found, found)))
