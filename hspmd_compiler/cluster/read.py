"""ClusterSpecs from and to files: JSON or YAML both ways, and hostfiles in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated

import yaml

from ..base.forms import VERSION, Count, DeviceIds, Version, at_most, problems_of
from ..base.limits import MOST_DEVICES
from ..base.plain_content import text_of
from ..base.plain_texts import YAML_SUFFIXES, read_json, read_yaml, write_text
from ..base.typed import As, Misfits, Unfit, read
from ..errors import ClusterError
from . import hostfile
from .check import find_cluster_problems
from .cluster import CLUSTER, PAGE, ClusterSpec, DeviceSpec, LinkBetween, NodeSpec
from .link import LinkSpec, Number


def read_cluster(source: Path | str | Mapping[str, object]) -> ClusterSpec:
    """The ClusterSpec of a file or a mapping, checked. A file that is no JSON or YAML is a hostfile."""
    if isinstance(source, Mapping):
        return cluster_from(source)
    path, at = Path(source), str(source)
    try:
        text = text_of(path)
        if path.suffix == ".json" or text.lstrip().startswith("{"):
            return cluster_from(read_json(text, CLUSTER, at), at)
        if path.suffix in YAML_SUFFIXES:
            return cluster_from(read_yaml(text, CLUSTER, at), at)
    except OSError as error:
        fix = "name a hostfile, or a cluster in JSON or YAML"
        raise ClusterError(f"can't read the machines of {path}: {error.strerror}", fix=fix) from error
    except UnicodeDecodeError as error:
        raise ClusterError(f"{path} isn't a text: byte {error.start} is not UTF-8", fix=PAGE) from error
    return hostfile.read_hostfile(text, at)


def cluster_from(form: object, at: str = "") -> ClusterSpec:
    """The ClusterSpec that a form describes; one error lists every bad value in it."""
    try:
        found = read(ClusterForm, form)
    except Misfits as error:
        CLUSTER.refuse(problems_of(error, "cluster"), at)
        raise
    cluster = ClusterSpec(found.nodes, found.link, found.links)
    CLUSTER.refuse(find_cluster_problems(cluster), at)
    return cluster


def cluster_form(cluster: ClusterSpec) -> dict[str, object]:
    """The form of a ClusterSpec: keys in documented order, without those that say nothing."""
    form: dict[str, object] = {"version": VERSION, "nodes": [_node_form(node) for node in cluster.nodes]}
    if cluster.link is not None:
        form["link"] = _link_form(cluster.link)
    if cluster.links:
        form["links"] = [{"between": list(item.between), **_link_form(item.link)} for item in cluster.links]
    return form


def write_cluster(cluster: ClusterSpec, path: Path) -> None:
    """Write a file that reads back as an equal ClusterSpec, YAML where its suffix says so, else JSON."""
    form = cluster_form(cluster)
    if path.suffix in YAML_SUFFIXES:
        text: str = yaml.safe_dump(form, sort_keys=False, default_flow_style=None, width=100)
    else:
        text = json.dumps(form, indent=2, ensure_ascii=False) + "\n"
    write_text(path, text, ClusterError)


def _node(form: NodeForm) -> NodeSpec:
    return NodeSpec(form.address, tuple(each for group in form.devices for each in group), form.link)


def _devices(form: DeviceForm) -> tuple[DeviceSpec, ...]:
    """Devices that are alike: `count` of them, or one for each of `ids`."""
    device = DeviceSpec(kind=form.kind, memory=form.memory, flops=form.flops)
    if form.ids and form.count not in (None, len(form.ids)):
        raise Unfit(f"there are {len(form.ids)} ids", form.count, ("count",))
    return tuple(replace(device, id=number) for number in form.ids or ()) or (device,) * (form.count or 1)


def _link_between(form: LinkBetweenForm) -> LinkBetween:
    if len(form.between) != 2:
        raise Unfit("the addresses of two nodes", list(form.between), ("between",))
    first, second = form.between
    return LinkBetween((first, second), LinkSpec(form.bandwidth, form.latency))


@dataclass(frozen=True, slots=True)
class DeviceForm:
    """Devices that are alike, by their number or their ids."""

    count: Annotated[Count, at_most("devices", MOST_DEVICES)] | None = None
    ids: DeviceIds | None = None
    kind: str | None = None
    memory: int | None = None
    flops: Number | None = None


@dataclass(frozen=True, slots=True)
class NodeForm:
    """A machine."""

    address: str
    devices: tuple[Annotated[tuple[DeviceSpec, ...], As(DeviceForm, _devices)], ...]
    link: LinkSpec | None = None


@dataclass(frozen=True, slots=True)
class LinkBetweenForm:
    """A link between two nodes that differs from the common one."""

    between: tuple[str, ...]
    bandwidth: Number
    latency: Number = 0.0


@dataclass(frozen=True, slots=True)
class ClusterForm:
    """The keys of a cluster."""

    version: Version = VERSION
    nodes: tuple[Annotated[NodeSpec, As(NodeForm, _node)], ...] = field(kw_only=True)
    link: LinkSpec | None = None
    links: tuple[Annotated[LinkBetween, As(LinkBetweenForm, _link_between)], ...] = ()


def _node_form(node: NodeSpec) -> dict[str, object]:
    groups = [list(group) for _, group in groupby(node.devices, key=lambda device: replace(device, id=None))]
    form: dict[str, object] = {"address": node.address, "devices": [_group_form(group) for group in groups]}
    return form if node.link is None else {**form, "link": _link_form(node.link)}


def _group_form(group: list[DeviceSpec]) -> dict[str, object]:
    first = group[0]
    places: dict[str, object] = {"count": len(group)}
    if first.id is not None:
        places = {"ids": [device.id for device in group]}
    values = {"kind": first.kind, "memory": first.memory, "flops": first.flops}
    return places | {name: value for name, value in values.items() if value is not None}


def _link_form(link: LinkSpec) -> dict[str, object]:
    return {"bandwidth": link.bandwidth, "latency": link.latency}
