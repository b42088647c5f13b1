"""A ClusterSpec: machines, their devices and the links between them. Values only, and their rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Annotated, TypeAlias

from ..base.bad_values import Problem, ProblemSubject
from ..base.devices import DeviceKind, family_of
from ..base.typed import Wanted
from ..errors import ClusterError

PAGE = "docs/machines.md shows both kinds of file, every key and its rule"
Number: TypeAlias = Annotated[float, Wanted("a number, such as 4.0e+11")]
CLUSTER = ProblemSubject("a cluster", ClusterError, PAGE)


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """bandwidth: bytes per second in one direction. latency: seconds of an empty message."""

    bandwidth: Number
    latency: Number = 0.0


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device. None where it is not told.

    kind: `cpu`, or `cuda` with the device's name or a part of it. id: the strategy's device that
    this one is. memory: bytes. flops: floating-point operations per second, in 16 bits.
    """

    kind: str | None = None
    id: int | None = None
    memory: int | None = None
    flops: float | None = None

    def serves(self, wanted: str) -> bool:
        """Whether a program compiled for this kind may run here, as far as is told."""
        if self.kind is None:
            return True
        family, _, name = self.kind.partition(" ")
        wanted_family, _, wanted_name = wanted.partition(" ")
        return family == wanted_family and (not name or wanted_name.lower() in name.lower())


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A machine: devices in the order of their local indices, and the link between any two of them."""

    address: str
    devices: tuple[DeviceSpec, ...]
    link: LinkSpec | None = None


@dataclass(frozen=True, slots=True)
class NodeLink:
    """A link between two nodes that differs from the common one."""

    between: tuple[str, str]
    link: LinkSpec


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Nodes in the order in which ranks fill them. link: between nodes; links: where it differs."""

    nodes: tuple[NodeSpec, ...]
    link: LinkSpec | None = None
    links: tuple[NodeLink, ...] = ()

    @property
    def slots(self) -> Iterator[tuple[int, int]]:
        """(node, local index) of every device, node by node."""
        for number, node in enumerate(self.nodes):
            for local in range(len(node.devices)):
                yield number, local

    @property
    def names_devices(self) -> bool:
        """Whether devices are told by id, rather than by their order."""
        return any(device.id is not None for node in self.nodes for device in node.devices)

    def link_between(self, first: int, second: int) -> LinkSpec | None:
        """The link of devices on two nodes, by index; inside a node where both are the same."""
        if first == second:
            return self.nodes[first].link
        ends = {self.nodes[first].address, self.nodes[second].address}
        return next((item.link for item in self.links if set(item.between) == ends), self.link)


def check_cluster(cluster: ClusterSpec, at: str = "") -> None:
    """Raise one ClusterError that lists every value that breaks a rule."""
    CLUSTER.refuse(find_cluster_problems(cluster), at)


def find_cluster_problems(cluster: ClusterSpec) -> list[Problem]:
    """All broken rules."""
    found = [] if cluster.nodes else [Problem("nodes", "empty: a cluster has at least one node")]
    times = Counter(node.address for node in cluster.nodes)
    for index, node in enumerate(cluster.nodes):
        path = f"nodes[{index}]"
        found += _address_problems(f"{path}.address", node.address, times[node.address])
        if not node.devices:
            found.append(Problem(f"{path}.devices", "empty: a node has at least one device"))
        found += _device_problems(path, node)
        found += _link_problems(f"{path}.link", node.link)
    found += _id_problems(cluster)
    found += _link_problems("link", cluster.link)
    for index, item in enumerate(cluster.links):
        path = f"links[{index}]"
        if len(set(item.between)) < 2 or not set(item.between) <= times.keys():
            ends = " and ".join(item.between)
            found.append(Problem(f"{path}.between", f"{ends}: the addresses of two nodes"))
        found += _link_problems(path, item.link)
    return found


def _address_problems(path: str, address: str, times: int) -> Iterator[Problem]:
    if not address or any(sign.isspace() for sign in address):
        yield Problem(path, f"{address!r}: an address is a host name or an IP address")
    if times > 1:
        yield Problem(path, f"{address}: a node stands in the list once, this one {times} times")


def _device_problems(path: str, node: NodeSpec) -> Iterator[Problem]:
    known = [kind.value for kind in DeviceKind]
    has_cpu = False
    for place, device in _runs(path, node.devices):
        family = None if device.kind is None else family_of(device.kind)
        if family is not None and family not in known:
            rule = f"{' or '.join(known)}, which the device's name may follow"
            yield Problem(f"{place}.kind", f"{device.kind!r}: {rule}")
        if family == DeviceKind.CUDA and has_cpu:
            rule = "cuda devices come first, since their place is their index in CUDA"
            yield Problem(f"{place}.kind", f"{device.kind} behind a cpu: {rule}")
        has_cpu |= family == DeviceKind.CPU
        for name, value in (("memory", device.memory), ("flops", device.flops)):
            if value is not None and not 0 < value < float("inf"):
                yield Problem(f"{place}.{name}", f"{value:g}: a number above 0")


def _runs(path: str, devices: Sequence[DeviceSpec]) -> Iterator[tuple[str, DeviceSpec]]:
    """Devices that follow each other and are alike, once, with the place of all of them."""
    low = 0
    for _, group in groupby(devices, key=lambda device: replace(device, id=None)):
        alike = list(group)
        high = low + len(alike) - 1
        yield f"{path}.devices[{low}{f'-{high}' if high > low else ''}]", alike[0]
        low = high + 1


def _id_problems(cluster: ClusterSpec) -> Iterator[Problem]:
    """Either every device has an id, each its own, or none has."""
    if not cluster.names_devices:
        return
    ids = Counter(device.id for node in cluster.nodes for device in node.devices)
    for index, node in enumerate(cluster.nodes):
        for local, device in enumerate(node.devices):
            path = f"nodes[{index}].devices[{local}].id"
            if device.id is None:
                yield Problem(path, "missing: every device has an id, or none has")
            elif device.id < 0:
                yield Problem(path, f"{device.id}: a device id is 0 or more")
            elif ids[device.id] > 1:
                yield Problem(path, f"{device.id}: an id is of one device, this one of {ids[device.id]}")


def _link_problems(path: str, link: LinkSpec | None) -> Iterator[Problem]:
    if link is None:
        return
    if not 0 < link.bandwidth < float("inf"):
        yield Problem(f"{path}.bandwidth", f"{link.bandwidth:g}: bytes per second above 0")
    if not 0 <= link.latency < float("inf"):
        yield Problem(f"{path}.latency", f"{link.latency:g}: seconds, 0 or more")
