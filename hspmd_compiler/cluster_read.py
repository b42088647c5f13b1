"""ClusterSpecs from and to files: JSON or YAML both ways, and hostfiles in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import yaml

from . import hostfile
from .cluster import (
    CLUSTER,
    PAGE,
    ClusterSpec,
    DeviceSpec,
    LinkSpec,
    NodeLink,
    NodeSpec,
    find_cluster_problems,
)
from .errors import ClusterError
from .form_values import FormValues
from .limits import MOST_DEVICES, beyond
from .plain_content import text_of
from .plain_texts import YAML_SUFFIXES, read_json, read_yaml, write_text

VERSION = 1
CLUSTER_KEYS = ("version", "nodes", "link", "links")
NODE_KEYS = ("address", "devices", "link")
DEVICE_KEYS = ("count", "ids", "kind", "memory", "flops")
LINK_KEYS = ("bandwidth", "latency")


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
    reader = ClusterReader()
    cluster = reader.cluster(form)
    rules = [] if reader.problems else find_cluster_problems(cluster)
    CLUSTER.refuse([*reader.problems, *rules], at)
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


class ClusterReader(FormValues):
    """Reads the form of a cluster."""

    def __init__(self) -> None:
        super().__init__("cluster")

    def cluster(self, form: object) -> ClusterSpec:
        top = self.mapping("", form, CLUSTER_KEYS, ("nodes",))
        if top.get("version", VERSION) != VERSION:
            self.bad("version", f"{top['version']!r}: this version reads {VERSION}")
        return ClusterSpec(
            nodes=self.items("nodes", top.get("nodes", []), self._node),
            link=self._optional_link("link", top.get("link")),
            links=self.items("links", top.get("links", []), self._node_link),
        )

    def _node(self, path: str, form: object) -> NodeSpec:
        keys = self.mapping(path, form, NODE_KEYS, ("address", "devices"))
        groups = self.items(f"{path}.devices", keys.get("devices", []), self._devices)
        return NodeSpec(
            address=self.text(f"{path}.address", keys.get("address", "")),
            devices=tuple(device for group in groups for device in group),
            link=self._optional_link(f"{path}.link", keys.get("link")),
        )

    def _devices(self, path: str, form: object) -> tuple[DeviceSpec, ...]:
        """Devices that are alike: `count` of them, or one for each of `ids`."""
        keys = self.mapping(path, form, DEVICE_KEYS, ())
        kind, flops = keys.get("kind"), keys.get("flops")
        device = DeviceSpec(
            kind=None if kind is None else self.text(f"{path}.kind", kind),
            memory=self.optional(f"{path}.memory", keys.get("memory")),
            flops=None if flops is None else self.number(f"{path}.flops", flops, 1.0),
        )
        ids = self.device_ids(f"{path}.ids", keys["ids"]) if "ids" in keys else ()
        count = self.integer(f"{path}.count", keys.get("count", len(ids) or 1), 1)
        if count < 1 or count > MOST_DEVICES:
            rule = beyond("devices", count, MOST_DEVICES) or f"{count}: a count is at least 1"
            self.bad(f"{path}.count", rule)
            count = 1
        elif ids and count != len(ids):
            self.bad(f"{path}.count", f"{count}: there are {len(ids)} ids")
        return tuple(replace(device, id=number) for number in ids) or (device,) * count

    def _optional_link(self, path: str, form: object) -> LinkSpec | None:
        return None if form is None else self._link(path, self.mapping(path, form, LINK_KEYS, ("bandwidth",)))

    def _link(self, path: str, keys: Mapping[str, object]) -> LinkSpec:
        return LinkSpec(
            self.number(f"{path}.bandwidth", keys.get("bandwidth", 1.0), 1.0),
            self.number(f"{path}.latency", keys.get("latency", 0.0), 0.0),
        )

    def _node_link(self, path: str, form: object) -> NodeLink:
        keys = self.mapping(path, form, ("between", *LINK_KEYS), ("between", "bandwidth"))
        here = f"{path}.between"
        ends = [
            self.text(f"{here}[{index}]", end)
            for index, end in enumerate(self.sequence(here, keys.get("between", ["", ""])))
        ]
        if len(ends) != 2 and here not in self.unread:
            self.bad(here, f"{ends}: the addresses of two nodes")
        first, second = ends if len(ends) == 2 else ("", "")
        return NodeLink((first, second), self._link(path, keys))


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
