"""A ClusterSpec: machines, their devices and the links between them. Values only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..base.bad_values import ProblemSubject
from ..base.devices import is_device
from ..errors import ClusterError
from .calibration import Calibration
from .ends import EndKind, LinkEnd, link_end
from .link import LinkKind, LinkSpec

PAGE = "docs/machines.md shows both kinds of file, every key and its rule"
CLUSTER = ProblemSubject("a cluster", ClusterError, PAGE)

HALVES = ("float16", "bfloat16")
EFFICIENCY = 0.4
"""Of the peak that large operators reach, where nothing else is told: between 0.3 and 0.5 for V100 and T4."""
MEMORY_EFFICIENCY = 0.8
"""Of the memory bandwidth, likewise."""


class NodeSlot(NamedTuple):
    """A place for a rank: the node's index, and the device's on it."""

    node: int
    local: int


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device. None where it is not told.

    kind: `cpu`, or `cuda` with the device's name or a part of it. id: the strategy's device that
    this one is. memory: bytes. flops: floating-point operations per second, in 16 bits. peaks: the same
    by element type, of all types that it computes in itself. memory_bandwidth: bytes per second.
    efficiency, memory_efficiency: the parts of both that operators reach. pace: how many times longer
    computing takes than on the machine that was measured.
    """

    kind: str | None = None
    id: int | None = None
    memory: int | None = None
    flops: float | None = None
    peaks: Mapping[str, float] = field(default_factory=dict, hash=False)
    memory_bandwidth: float | None = None
    efficiency: float | None = None
    memory_efficiency: float | None = None
    price_per_hour: float | None = None
    pace: float = 1.0

    def serves(self, wanted: str) -> bool:
        """Whether a program compiled for this kind may run here, as far as is told."""
        if self.kind is None:
            return True
        family, _, name = self.kind.partition(" ")
        wanted_family, _, wanted_name = wanted.partition(" ")
        return family == wanted_family and (not name or not wanted_name or is_device(name, wanted_name))

    def peak(self, dtype: str) -> float | None:
        """Operations per second in an element type; None where the figure is not told.

        A 16-bit type that the device does not compute in is computed in float32.
        """
        if dtype in self.peaks:
            return self.peaks[dtype]
        if self.emulates(dtype):
            return self.peaks.get("float32")
        return self.flops if dtype in HALVES else None

    def emulates(self, dtype: str) -> bool:
        """Whether it has no units for a 16-bit type, as V100 has none for bfloat16."""
        return dtype in HALVES and dtype not in self.peaks and any(half in self.peaks for half in HALVES)

    def achieved(self, dtype: str) -> float | None:
        """Operations per second that large operators reach."""
        peak = self.peak(dtype)
        return None if peak is None else peak * (EFFICIENCY if self.efficiency is None else self.efficiency)

    @property
    def achieved_bandwidth(self) -> float | None:
        """Bytes per second that large operators read and write."""
        share = MEMORY_EFFICIENCY if self.memory_efficiency is None else self.memory_efficiency
        return None if self.memory_bandwidth is None else self.memory_bandwidth * share


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A machine: devices in the order of their local indices, and the link between any two of them.

    nic: to the other nodes, shared by all its ranks. cores: processors that its cpu ranks share.
    price_per_hour: of the whole node; else the sum of its devices.
    """

    address: str
    devices: tuple[DeviceSpec, ...]
    link: LinkSpec | None = None
    nic: LinkSpec | None = None
    cores: int | None = None
    zone: str | None = None
    price_per_hour: float | None = None

    @property
    def price(self) -> float | None:
        """Per hour; None where it is not told of all devices."""
        prices = [device.price_per_hour for device in self.devices]
        if self.price_per_hour is not None or None in prices:
            return self.price_per_hour
        return sum(price for price in prices if price is not None)


@dataclass(frozen=True, slots=True)
class LinkBetween:
    """A link that differs from the common one.

    between: two ends, each a node `ADDRESS`, a device `ADDRESS/INDEX`, `zone NAME` or `kind NAME`.
    """

    between: tuple[str, str]
    link: LinkSpec

    @property
    def ends(self) -> tuple[LinkEnd, LinkEnd]:
        return link_end(self.between[0]), link_end(self.between[1])

    @property
    def is_of_devices(self) -> bool:
        """Whether both ends are devices: then it holds inside a node, and passes by the NICs."""
        return all(end.kind is EndKind.DEVICE for end in self.ends)


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Nodes in the order in which ranks fill them. link: between nodes; links: where it differs."""

    nodes: tuple[NodeSpec, ...]
    link: LinkSpec | None = None
    links: tuple[LinkBetween, ...] = ()
    calibration: Calibration | None = None

    @property
    def slots(self) -> Iterator[NodeSlot]:
        """Every device, node by node."""
        for number, node in enumerate(self.nodes):
            for local in range(len(node.devices)):
                yield NodeSlot(number, local)

    @property
    def names_devices(self) -> bool:
        """Whether devices are told by id, rather than by their order."""
        return any(device.id is not None for node in self.nodes for device in node.devices)

    @property
    def price(self) -> float | None:
        """Per hour; None where it is not told of all nodes."""
        prices = [node.price for node in self.nodes]
        return None if None in prices else sum(price for price in prices if price is not None)

    def node_of(self, slot: NodeSlot) -> NodeSpec:
        return self.nodes[slot.node]

    def device_of(self, slot: NodeSlot) -> DeviceSpec:
        return self.nodes[slot.node].devices[slot.local]

    def path(self, first: NodeSlot, second: NodeSlot) -> LinkSpec | None:
        """The link between two devices; None where it is not told.

        Between nodes it is as slow as the slowest of the link and the two NICs. Of a device with itself
        it is a copy in its memory.
        """
        if first == second:
            bandwidth = self.device_of(first).memory_bandwidth
            return None if bandwidth is None else LinkSpec(bandwidth / 2, kind=LinkKind.LOCAL)
        own = self._own_link(first, second)
        if own is not None and own.is_of_devices:
            return own.link
        if first.node == second.node:
            return self.node_of(first).link
        parts = (own.link if own else self.link, self.node_of(first).nic, self.node_of(second).nic)
        known = [part for part in parts if part is not None]
        if not known:
            return None
        slowest = min(known, key=lambda part: part.bandwidth)
        return replace(slowest, latency=max(part.latency for part in known))

    def shares_nic(self, first: NodeSlot, second: NodeSlot) -> bool:
        """Whether what two devices send each other goes through the NICs of their nodes."""
        if first.node == second.node or not self.links:
            return first.node != second.node
        own = self._own_link(first, second)
        return own is None or not own.is_of_devices

    def _own_link(self, first: NodeSlot, second: NodeSlot) -> LinkBetween | None:
        """Of the links that differ and hold here, the one with the most precise ends; of equals the first."""
        holding = [item for item in self.links if self._joins(item, first, second)]
        return max(holding, key=lambda item: sum(end.kind for end in item.ends), default=None)

    def _joins(self, item: LinkBetween, first: NodeSlot, second: NodeSlot) -> bool:
        if first.node == second.node and not item.is_of_devices:
            return False
        low, high = item.ends
        straight = self._has(low, first) and self._has(high, second)
        return straight or (self._has(low, second) and self._has(high, first))

    def _has(self, end: LinkEnd, slot: NodeSlot) -> bool:
        node = self.nodes[slot.node]
        if end.kind is EndKind.KIND:
            return end.name.lower() in (node.devices[slot.local].kind or "").lower()
        if end.kind is EndKind.ZONE:
            return end.name == node.zone
        return end.name == node.address and (end.kind is EndKind.NODE or end.local == slot.local)
