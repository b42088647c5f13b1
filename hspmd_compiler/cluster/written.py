"""The form of a ClusterSpec as it stands in a file, without keys that say nothing."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from itertools import groupby
from typing import Any

from ..base.codec import encode
from ..base.forms import VERSION
from ..base.quantities import BANDWIDTH, BYTE_COUNT, DURATION, RATE
from .cluster import ClusterSpec, DeviceSpec, NodeSpec
from .link import LinkSpec


def cluster_form(cluster: ClusterSpec, has_units: bool = False) -> dict[str, object]:
    """The form that `cluster_from` reads back as an equal ClusterSpec.

    has_units: figures are texts such as `80GiB` where those mean the very same number.
    """
    nodes = [_node_form(node) for node in cluster.nodes]
    form: dict[str, object] = {"version": VERSION, "nodes": nodes}
    if cluster.link is not None:
        form["link"] = link_form(cluster.link)
    if cluster.links:
        form["links"] = [{"between": list(item.between), **link_form(item.link)} for item in cluster.links]
    if has_units:
        form = {key: _with_units(value) for key, value in form.items()}
    if cluster.calibration is not None:
        form["calibration"] = encode(cluster.calibration)
    return form


def _node_form(node: NodeSpec) -> dict[str, object]:
    groups = [list(group) for _, group in groupby(node.devices, key=lambda device: replace(device, id=None))]
    form: dict[str, object] = {"address": node.address, "devices": [_group_form(group) for group in groups]}
    links = {"link": node.link, "nic": node.nic}
    form |= {name: link_form(link) for name, link in links.items() if link is not None}
    return form | _told(node, "address", "devices", "link", "nic")


def _group_form(group: list[DeviceSpec]) -> dict[str, object]:
    first = group[0]
    places: dict[str, object] = {"count": len(group)}
    if first.id is not None:
        places = {"ids": [device.id for device in group]}
    return places | _told(first, "id")


def link_form(link: LinkSpec) -> dict[str, object]:
    curve = {"curve": [list(point) for point in link.curve]} if link.curve else {}
    kind = {"kind": link.kind.value} if link.kind is not None else {}
    return {**kind, "bandwidth": link.bandwidth, "latency": link.latency, **curve}


def _told(value: Any, *left_out: str) -> dict[str, object]:
    """The fields that differ from their default."""
    told: dict[str, object] = {}
    for item in fields(value):
        held = getattr(value, item.name)
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        if item.name not in left_out and held != default:
            told[item.name] = dict(held) if item.name == "peaks" else held
    return told


UNITS = {
    "memory": (BYTE_COUNT, ("GiB", "MiB", "GB")),
    "bandwidth": (BANDWIDTH, ("GB/s", "Gbit/s")),
    "memory_bandwidth": (BANDWIDTH, ("GB/s",)),
    "latency": (DURATION, ("us",)),
    "flops": (RATE, ("TFLOP/s",)),
    "peaks": (RATE, ("TFLOP/s",)),
}


def _with_units(value: Any, key: str = "") -> Any:
    """The same with units; key: of the entry that the value stands in."""
    if isinstance(value, dict):
        return {name: _with_units(held, key if key in UNITS else name) for name, held in value.items()}
    if isinstance(value, list):
        return [_with_units(held) for held in value]
    if key not in UNITS or not isinstance(value, int | float):
        return value
    quantity, units = UNITS[key]
    return quantity.exact_text(value, *units)
