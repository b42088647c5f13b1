"""A new ClusterSpec from short texts: `2xA100-80`, `gpu[1-4]=8xH100,nic=400Gbit`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..base.bad_values import Problem, ProblemSubject
from ..base.devices import DeviceKind
from ..base.limits import MOST_DEVICES, beyond
from ..base.quantities import PRICE
from ..errors import ClusterError
from .catalogue import CatalogueDevice
from .check import find_cluster_problems
from .cluster import ClusterSpec, DeviceSpec, LinkBetween, NodeSpec
from .device_names import is_named, known_text, named_device
from .figures import of_catalogue
from .link import LinkKind
from .node_link import NodeLink, link_of_text, node_link
from .node_names import node_names

FORM = "[ADDRESS=][N*]COUNTxKIND[+COUNTxKIND][,KEY=VALUE]"
KEYS = ("nic", "link", "zone", "price", "cores")
NEW = ProblemSubject("a new cluster", ClusterError, "hspmd cluster new --help shows the form of each flag")

CPU = DeviceSpec(DeviceKind.CPU.value)
TIMES = re.compile(r"\s*([0-9]{1,9})\s*\*\s*(.*?)\s*", re.ASCII)
NAME = re.compile(r"[\w.:-]+")
GROUP = re.compile(r"\s*([0-9]{1,9})\s*[x×]\s*(.*?)\s*", re.ASCII)
PARTS = re.compile(r",(?![^\[]*\])")


@dataclass(frozen=True, slots=True)
class NewCluster:
    """What is asked for. settings: `nic`, `link`, `zone`, `cores` of nodes that don't tell their own.

    prices: of a device and hour, each `PRICE` for all or `KIND=PRICE`. network: of ClusterSpec.link.
    """

    nodes: Sequence[str]
    settings: Mapping[str, str] = field(default_factory=dict)
    prices: Sequence[str] = ()
    network: str = ""


@dataclass(frozen=True, slots=True)
class MadeCluster:
    """notes: what was assumed on the way."""

    cluster: ClusterSpec
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Setting:
    """place: where it is written."""

    place: str
    value: str


@dataclass(slots=True)
class _Making:
    """Nodes as they are read, with what is wrong and what was assumed."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    nodes: list[NodeSpec] = field(default_factory=list)
    links: list[LinkBetween] = field(default_factory=list)
    has_unknown: bool = False

    def wrong(self, place: str, text: str) -> None:
        self.problems.append(Problem(place, text))

    def try_to(self, place: str, value: str, read: Callable[[str], Any]) -> Any:
        """What `read` makes of a value; None where it refuses."""
        try:
            return read(value) if value else None
        except ValueError as error:
            self.wrong(place, f"{value}: {error}")
            return None


def new_cluster(asked: NewCluster) -> MadeCluster:
    """The cluster of these texts; one ClusterError lists all that can't be read."""
    making = _Making()
    for text in asked.nodes:
        _add_nodes(text, asked.settings, making)
    if not asked.nodes:
        making.wrong("--node", f"missing: a cluster has at least one node; {FORM}")
    nodes = _priced(making, asked.prices)
    link = making.try_to("--network", asked.network, lambda value: link_of_text(value, LinkKind.NETWORK))
    cluster = ClusterSpec(nodes, link, tuple(making.links))
    broken = [_by_address(problem, nodes) for problem in find_cluster_problems(cluster) if _is_told(problem)]
    subject = replace(NEW, fix=f"{NEW.fix}; {known_text(DeviceKind.CPU)}") if making.has_unknown else NEW
    subject.refuse(list(dict.fromkeys([*making.problems, *broken])))
    if len(cluster.nodes) > 1 and link is None and any(node.nic is None for node in cluster.nodes):
        making.notes.append("nothing is told of the network: --nic or --network gives its bandwidth")
    return MadeCluster(cluster, tuple(dict.fromkeys(making.notes)))


def _is_told(problem: Problem) -> bool:
    """Whether a broken rule is not only what an unread text left behind."""
    return problem.path != "nodes" and not problem.path.endswith(".devices")


def _by_address(problem: Problem, nodes: Sequence[NodeSpec]) -> Problem:
    """With the node's address in the place of its index, which nobody wrote."""
    index = re.match(r"nodes\[(\d+)\]", problem.path)
    if index is None:
        return problem
    return Problem(f"{nodes[int(index[1])].address}{problem.path[index.end() :]}", problem.text)


def _add_nodes(text: str, settings: Mapping[str, str], making: _Making) -> None:
    place = f"--node {text[:60]}"
    head, *pairs = PARTS.split(text)
    own = {key: _Setting(f"--{key}", value) for key, value in settings.items()}
    own |= _own_settings(place, pairs, making)
    addresses, body = _addresses(place, head, making)
    devices = _devices(place, body, making)
    node = _node(devices, own, making)
    link = own.get("link", _Setting(place, ""))
    found = making.try_to(link.place, link.value or " ", lambda value: node_link(devices, value.strip()))
    found = found or NodeLink()
    making.notes += found.notes
    for address in addresses:
        address = address or f"node-{len(making.nodes)}"
        making.nodes.append(replace(node, address=address, link=found.link))
        for low, high, bridge in found.pairs:
            making.links.append(LinkBetween((f"{address}/{low}", f"{address}/{high}"), bridge))


def _own_settings(place: str, pairs: Sequence[str], making: _Making) -> dict[str, _Setting]:
    found: dict[str, _Setting] = {}
    for pair in pairs:
        key, sign, value = (part.strip() for part in pair.partition("="))
        if key not in KEYS or not sign or not value:
            making.wrong(place, f"{pair.strip()!r}: KEY=VALUE, with {', '.join(KEYS)}")
            continue
        if key in found:
            making.wrong(place, f"{key} stands twice: each once")
        found[key] = _Setting(f"{place} {key}", value)
    return found


def _addresses(place: str, head: str, making: _Making) -> tuple[Sequence[str], str]:
    """The address of each node, empty where it gets one by its number; and what the node consists of."""
    name, sign, body = head.rpartition("=")
    addresses: list[str] = [""]
    if sign:
        addresses = making.try_to(place, name.strip() or " ", _node_names) or [""]
    times = TIMES.fullmatch(body)
    if times is None:
        return addresses, body
    count, body = int(times[1]), times[2].removeprefix("(").removesuffix(")")
    rule = beyond("nodes", count, MOST_DEVICES) or ("" if count else "at least one node")
    if rule or (sign and len(addresses) != count):
        making.wrong(place, rule or f"{count} nodes, but {len(addresses)} addresses")
        return addresses, body
    return addresses if sign else [""] * count, body


def _node_names(text: str) -> list[str]:
    names = node_names(text)
    if not all(NAME.fullmatch(name) for name in names):
        raise ValueError("an address is a host name or an IP address")
    return names


def _devices(place: str, body: str, making: _Making) -> list[CatalogueDevice | None]:
    """All devices of the node, None for a cpu."""
    found: list[CatalogueDevice | None] = []
    for text in body.split("+"):
        group = GROUP.fullmatch(text)
        rule = "" if group is None else beyond("devices", len(found) + int(group[1]), MOST_DEVICES)
        if group is None or rule or not int(group[1]):
            making.wrong(place, rule or f"{text.strip()!r}: not understood; the form is {FORM}")
            continue
        device = _device(place, group[2], making)
        found += [device] * int(group[1])
    return found


def _device(place: str, name: str, making: _Making) -> CatalogueDevice | None:
    if name.lower() == DeviceKind.CPU:
        return None
    named = named_device(name)
    if named is None:
        making.wrong(place, f"{name or 'no name'}: an unknown device")
        making.has_unknown = True
        return None
    making.notes += [named.note] if named.note else []
    return named.device


def _node(
    devices: Sequence[CatalogueDevice | None], own: Mapping[str, _Setting], making: _Making
) -> NodeSpec:
    """Without its address and its link."""

    def told(key: str, read: Callable[[str], Any]) -> Any:
        return making.try_to(own[key].place, own[key].value, read) if key in own else None

    return NodeSpec(
        address="",
        devices=tuple(CPU if each is None else each.spec for each in devices),
        nic=told("nic", lambda text: link_of_text(text, LinkKind.NETWORK)),
        cores=told("cores", _cores),
        zone=told("zone", str),
        price_per_hour=told("price", PRICE.read),
    )


def _cores(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text, re.ASCII):
        raise ValueError("a whole number above 0")
    return int(text)


def _priced(making: _Making, texts: Sequence[str]) -> tuple[NodeSpec, ...]:
    """The nodes, each device at the first price that is for its kind, else at the one for all."""
    prices: dict[str, float] = {}
    for text in texts:
        name, sign, price = text.rpartition("=")
        value = making.try_to(f"--price {text}", price.strip() or " ", PRICE.read)
        if name.strip() in prices or (sign and not name.strip()):
            making.wrong(f"--price {text}", "one price for all, and one for each KIND")
        elif value is not None:
            prices[name.strip()] = value
    used: set[str] = {""}
    nodes = tuple(
        replace(node, devices=tuple(_priced_device(device, prices, used) for device in node.devices))
        for node in making.nodes
    )
    unused = (name for name in prices if name not in used)
    making.problems += [Problem(f"--price {name}", "no node has this device") for name in unused]
    return nodes


def _priced_device(device: DeviceSpec, prices: Mapping[str, float], used: set[str]) -> DeviceSpec:
    named = of_catalogue(device)
    for name, price in prices.items():
        own = name.lower() == device.kind if named is None else is_named(named.device, name)
        if own:
            used.add(name)
            return replace(device, price_per_hour=price)
    return replace(device, price_per_hour=prices.get(""))
