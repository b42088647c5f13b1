"""A cluster at a glance: nodes that are alike together, figures with where they come from, links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from ..base.number_ranges import number_ranges
from ..base.quantities import figure_text
from .calibration import Calibration
from .catalogue import CatalogueDevice, FigureStatus
from .cluster import ClusterSpec, DeviceSpec, LinkBetween, NodeSlot, NodeSpec
from .figures import NOT_TOLD, ToldFigure, device_figures, of_catalogue, uncertain
from .link import LinkKind, LinkSpec
from .written import cluster_form, link_form


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes in a row that differ in their address and ids only; first: the index of the first."""

    first: int
    nodes: tuple[NodeSpec, ...]

    @property
    def title(self) -> str:
        """`node-0`, or `node-0 to node-7`."""
        ends = (self.nodes[0].address, self.nodes[-1].address)
        return ends[0] if len(self.nodes) == 1 else f"{ends[0]} to {ends[1]}"

    def lines(self) -> Iterator[str]:
        """What each of them has."""
        node = self.nodes[0]
        for device, count, ids in _device_rows(node, tells_ids=len(self.nodes) == 1):
            yield f"{count} x {device.kind or 'device'}{ids}"
        if node.link is not None:
            yield f"link {link_text(node.link)} ({link_status(node.link, node.devices)})"
        if node.nic is not None:
            yield f"nic {link_text(node.nic)}"
        if node.cores is not None:
            yield f"cores {node.cores}"
        if node.zone is not None:
            yield f"zone {node.zone}"
        if node.price is not None:
            yield f"price {node.price:g} per hour"


@dataclass(frozen=True, slots=True)
class Overview:
    """matrix: between the first nodes of each two groups; of one group, between two of its nodes."""

    title: str
    groups: tuple[NodeGroup, ...]
    figures: tuple[tuple[str, tuple[ToldFigure, ...]], ...]
    matrix: tuple[tuple[LinkSpec | None, ...], ...]
    links: tuple[LinkBetween, ...]
    notes: tuple[str, ...]


def overview(cluster: ClusterSpec) -> Overview:
    """All that `hspmd cluster show` tells."""
    groups = tuple(_groups(cluster))
    devices = [device for node in cluster.nodes for device in node.devices]
    kinds = dict.fromkeys(replace(device, id=None) for device in devices)
    price = "" if cluster.price is None else f", {cluster.price:g} per hour"
    count = len(cluster.nodes)
    measured = () if cluster.calibration is None else (_calibration_text(cluster.calibration),)
    return Overview(
        title=f"{count} node{'s' * (count != 1)}, {len(devices)} device{'s' * (len(devices) != 1)}{price}",
        groups=groups,
        figures=tuple((kind.kind or "device", tuple(device_figures(kind))) for kind in kinds),
        matrix=tuple(tuple(_path(cluster, row, column) for column in groups) for row in groups),
        links=cluster.links,
        notes=(*measured, *uncertain(devices)),
    )


def overview_to_json(cluster: ClusterSpec, seen: Overview) -> dict[str, Any]:
    """For scripts: the file's own keys, each figure with its status, and the links between groups."""
    figures = [
        {
            "device": kind,
            "figure": each.name,
            "value": each.value,
            "status": None if each.status is None else each.status.value,
            "note": each.note,
        }
        for kind, told in seen.figures
        for each in told
    ]
    links = [
        {"between": [row.title, column.title], **link_form(link)}
        for low, row in enumerate(seen.groups)
        for high, column in enumerate(seen.groups)
        if low <= high and (link := seen.matrix[low][high]) is not None
    ]
    return {
        "cluster": cluster_form(cluster),
        "devices": sum(len(node.devices) for node in cluster.nodes),
        "price_per_hour": cluster.price,
        "figures": figures,
        "links": links,
        "notes": list(seen.notes),
    }


def link_text(link: LinkSpec | None) -> str:
    """`nvlink 300 GB/s, 2 µs`."""
    if link is None:
        return NOT_TOLD
    kind = "" if link.kind is None else f"{link.kind} "
    curve = f", measured at {len(link.curve)} sizes" if link.curve else ""
    return f"{kind}{figure_text(link.bandwidth, 'B/s')}, {figure_text(link.latency, 's')}{curve}"


def link_status(link: LinkSpec, devices: Sequence[DeviceSpec]) -> str:
    """Where the bandwidth of a node's link comes from."""
    if link.curve:
        return "measured"
    for device in devices:
        named = of_catalogue(device)
        if named is not None and (status := _status_in(named.device, link)) is not None:
            return status.value
    return FigureStatus.GIVEN.value


def _status_in(device: CatalogueDevice, link: LinkSpec) -> FigureStatus | None:
    own = device.own_link
    given = (link.kind, link.bandwidth)
    if device.link is not None and own is not None and given == (own.kind, own.bandwidth):
        return device.link.figure.status
    return device.pcie.status if given == (LinkKind.PCIE, device.pcie_link.bandwidth) else None


def _groups(cluster: ClusterSpec) -> Iterator[NodeGroup]:
    first = 0
    for _, group in groupby(cluster.nodes, key=_without_names):
        nodes = tuple(group)
        yield NodeGroup(first, nodes)
        first += len(nodes)


def _without_names(node: NodeSpec) -> NodeSpec:
    return replace(node, address="", devices=tuple(replace(device, id=None) for device in node.devices))


def _device_rows(node: NodeSpec, tells_ids: bool) -> Iterator[tuple[DeviceSpec, int, str]]:
    """Devices that are alike, how many, and their ids."""
    for device, group in groupby(node.devices, key=lambda device: replace(device, id=None)):
        ids = [one.id for one in group]
        told = number_ranges(number for number in ids if number is not None)
        yield device, len(ids), f", ids {told}" if told and tells_ids else ""


def _path(cluster: ClusterSpec, row: NodeGroup, column: NodeGroup) -> LinkSpec | None:
    second = column.first + (1 if row is column and len(row.nodes) > 1 else 0)
    if row is column and len(row.nodes) == 1:
        return None
    return cluster.path(NodeSlot(row.first, 0), NodeSlot(second, 0))


def _calibration_text(found: Calibration) -> str:
    fits = [*found.operators.values(), *found.exchange.values(), *found.collectives.values()]
    spread = max((fit.spread for fit in fits), default=0.0)
    counts = (("operator", found.operators), ("exchange", found.exchange), ("collective", found.collectives))
    told = ", ".join(f"{len(held)} {name} fit{'s' * (len(held) != 1)}" for name, held in counts)
    threads = f"{found.threads} thread{'s' * (found.threads != 1)}"
    return (
        f"measured on {found.date}, {found.device}, torch {found.torch}, {threads}: {told}, "
        f"spread at most {spread:.0%}"
    )
