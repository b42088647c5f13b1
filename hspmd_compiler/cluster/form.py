"""The keys of a cluster's file, and the ClusterSpec that they stand for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from ..base.forms import VERSION, Count, DeviceIds, Version, at_most, read_form
from ..base.limits import MOST_DEVICES
from ..base.quantities import Bandwidth, ByteCount, Duration, FlopRate, Part, Positive, Price
from ..base.typed import As, Unfit
from .calibration import Calibration
from .check import find_cluster_problems
from .cluster import CLUSTER, ClusterSpec, DeviceSpec, LinkBetween, NodeSpec
from .link import Curve, LinkKind, LinkSpec


def _node(form: NodeForm) -> NodeSpec:
    return NodeSpec(
        address=form.address,
        devices=tuple(each for group in form.devices for each in group),
        link=form.link,
        nic=form.nic,
        cores=form.cores,
        zone=form.zone,
        price_per_hour=form.price_per_hour,
    )


def _devices(form: DeviceForm) -> tuple[DeviceSpec, ...]:
    """Devices that are alike: `count` of them, or one for each of `ids`."""
    if form.ids and form.count not in (None, len(form.ids)):
        raise Unfit(f"there are {len(form.ids)} ids", form.count, ("count",))
    device = DeviceSpec(
        kind=form.kind,
        memory=form.memory,
        flops=form.flops,
        peaks=form.peaks,
        memory_bandwidth=form.memory_bandwidth,
        efficiency=form.efficiency,
        memory_efficiency=form.memory_efficiency,
        price_per_hour=form.price_per_hour,
        pace=form.pace,
    )
    return tuple(replace(device, id=number) for number in form.ids or ()) or (device,) * (form.count or 1)


def _link_between(form: LinkBetweenForm) -> LinkBetween:
    if len(form.between) != 2:
        raise Unfit("two ends", list(form.between), ("between",))
    first, second = form.between
    return LinkBetween((first, second), LinkSpec(form.bandwidth, form.latency, form.kind, form.curve))


@dataclass(frozen=True, slots=True)
class DeviceForm:
    """Devices that are alike, by their number or their ids."""

    count: Annotated[Count, at_most("devices", MOST_DEVICES)] | None = None
    ids: DeviceIds | None = None
    kind: str | None = None
    memory: ByteCount | None = None
    flops: FlopRate | None = None
    peaks: dict[str, FlopRate] = field(default_factory=dict)
    memory_bandwidth: Bandwidth | None = None
    efficiency: Part | None = None
    memory_efficiency: Part | None = None
    price_per_hour: Price | None = None
    pace: Positive = 1.0


@dataclass(frozen=True, slots=True)
class NodeForm:
    """A machine."""

    address: str
    devices: tuple[Annotated[tuple[DeviceSpec, ...], As(DeviceForm, _devices)], ...]
    link: LinkSpec | None = None
    nic: LinkSpec | None = None
    cores: Count | None = None
    zone: str | None = None
    price_per_hour: Price | None = None


@dataclass(frozen=True, slots=True)
class LinkBetweenForm:
    """A link that differs from the common one."""

    between: tuple[str, ...]
    bandwidth: Bandwidth
    latency: Duration = 0.0
    kind: LinkKind | None = None
    curve: Curve = ()


@dataclass(frozen=True, slots=True)
class ClusterForm:
    """The keys of a cluster."""

    version: Version = VERSION
    nodes: tuple[Annotated[NodeSpec, As(NodeForm, _node)], ...] = field(kw_only=True)
    link: LinkSpec | None = None
    links: tuple[Annotated[LinkBetween, As(LinkBetweenForm, _link_between)], ...] = ()
    calibration: Calibration | None = None


STAND_INS = {
    "": {"nodes": []},
    "nodes": [],
    "nodes[]": {"address": "unread", "devices": []},
    "address": "unread",
    "devices": [],
    "devices[]": {},
    "links[]": {"between": ["unread", "unread"], "bandwidth": 1},
    "between": ["unread", "unread"],
    "bandwidth": 1,
}


def cluster_from(form: object, at: str = "") -> ClusterSpec:
    """The ClusterSpec that a form describes; one error lists every bad value in it."""
    found = read_form(ClusterForm, form, "cluster", STAND_INS)
    read = found.form
    cluster = ClusterSpec(read.nodes, read.link, read.links, read.calibration)
    CLUSTER.refuse([*found.problems, *find_cluster_problems(cluster, found.unread)], at)
    return cluster
