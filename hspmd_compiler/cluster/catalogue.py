"""The built-in catalogue of devices: vendors' figures, each with where it comes from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path

from ..base.devices import DeviceKind
from ..base.typed import read
from .cluster import DeviceSpec
from .link import LinkKind, LinkSpec

FILE = Path(__file__).with_name("catalogue.json")
TERA, GIGA, GIB = 1e12, 1e9, 1 << 30

LATENCIES = {LinkKind.NVLINK: 2e-6, LinkKind.FABRIC: 2e-6, LinkKind.PCIE: 5e-6, LinkKind.NETWORK: 1e-5}
"""Assumed where nobody measured: no data sheet tells them."""


class FigureStatus(StrEnum):
    """Where a figure comes from; `given` and `assumed` are of figures outside the catalogue."""

    DATASHEET = "datasheet"
    DERIVED = "derived"
    UNCERTAIN = "uncertain"
    ASSUMED = "assumed"
    GIVEN = "given"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the catalogue, in the unit of its key."""

    value: float
    status: FigureStatus
    note: str = ""


@dataclass(frozen=True, slots=True)
class CatalogueLink:
    """The link to other devices of a node. is_for_pairs: a bridge between two, which may be absent."""

    kind: LinkKind
    figure: Figure
    is_for_pairs: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """A board that shows as several devices, and the link between those."""

    devices: int
    link: Figure


@dataclass(frozen=True, slots=True)
class CatalogueDevice:
    """A device, as PyTorch shows it.

    is_usual: meant where a name fits several forms of one chip. sizes_in_names: GB that drivers put into
    its name beside its own, as GH200's of the processor's memory.
    """

    name: str
    vendor: str
    source: str
    peaks_tflops: dict[str, Figure] = field(hash=False)
    memory_gib: Figure
    memory_gbps: Figure
    pcie: Figure
    pcie_generation: int
    link: CatalogueLink | None = None
    is_usual: bool = False
    board: Board | None = None
    sizes_in_names: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        """ROCm's devices are `cuda` to PyTorch, too."""
        return f"{DeviceKind.CUDA} {self.name}"

    @property
    def spec(self) -> DeviceSpec:
        return DeviceSpec(
            kind=self.kind,
            memory=round(self.memory_gib.value * GIB),
            peaks={dtype: figure.value * TERA for dtype, figure in self.peaks_tflops.items()},
            memory_bandwidth=self.memory_gbps.value * GIGA,
        )

    @property
    def pcie_link(self) -> LinkSpec:
        return LinkSpec(self.pcie.value * GIGA, LATENCIES[LinkKind.PCIE], LinkKind.PCIE)

    @property
    def own_link(self) -> LinkSpec | None:
        """NVLink or the like; None: it has only PCIe."""
        if self.link is None:
            return None
        return LinkSpec(self.link.figure.value * GIGA, LATENCIES[self.link.kind], self.link.kind)


@dataclass(frozen=True, slots=True)
class _Catalogue:
    about: str
    devices: tuple[CatalogueDevice, ...]


@cache
def catalogue() -> tuple[CatalogueDevice, ...]:
    """All devices, in the order of the file."""
    return read(_Catalogue, json.loads(FILE.read_text(encoding="utf-8"))).devices
