"""The rules of a cluster: every value that breaks one is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from ..base.bad_values import Problem
from ..base.devices import DeviceKind, family_of
from .check_figures import find_bad_calibration, find_bad_device, find_bad_link, find_bad_node
from .cluster import CLUSTER, ClusterSpec, DeviceSpec, LinkBetween, NodeSpec
from .ends import EndKind, LinkEnd


def check_cluster(cluster: ClusterSpec, at: str = "") -> None:
    """Raise one ClusterError that lists every value that breaks a rule."""
    CLUSTER.refuse(find_cluster_problems(cluster), at)


def find_cluster_problems(cluster: ClusterSpec, unread: Collection[str] = ()) -> list[Problem]:
    """All broken rules. unread: key paths whose value is a stand-in, so that no rule may judge it."""
    found = _find_problems(cluster)
    ids_unread = any("ids" in path or "devices" in path or "count" in path for path in unread)
    return [
        problem
        for problem in found
        if problem.path not in unread and not (ids_unread and problem.path.endswith(".id"))
    ]


def _find_problems(cluster: ClusterSpec) -> list[Problem]:
    found = [] if cluster.nodes else [Problem("nodes", "empty: a cluster has at least one node")]
    times = Counter(node.address for node in cluster.nodes)
    for index, node in enumerate(cluster.nodes):
        path = f"nodes[{index}]"
        found += _address_problems(f"{path}.address", node.address, times[node.address])
        if not node.devices:
            found.append(Problem(f"{path}.devices", "empty: a node has at least one device"))
        found += _device_problems(path, node)
        found += find_bad_node(path, node)
    found += _id_problems(cluster)
    found += find_bad_link("link", cluster.link)
    for index, item in enumerate(cluster.links):
        found += _end_problems(f"links[{index}].between", item, cluster)
        found += find_bad_link(f"links[{index}]", item.link)
    return [*found, *find_bad_calibration("calibration", cluster.calibration)]


def _address_problems(path: str, address: str, times: int) -> Iterator[Problem]:
    if not address or "/" in address or any(sign.isspace() for sign in address):
        yield Problem(path, f"{address!r}: an address is a host name or an IP address")
    if times > 1:
        yield Problem(path, f"{address}: a node stands in the list once, this one {times} times")


def _device_problems(path: str, node: NodeSpec) -> Iterator[Problem]:
    known = [kind.value for kind in DeviceKind]
    has_cpu = False
    for place, _, device in alike_runs(path, node.devices):
        family = None if device.kind is None else family_of(device.kind)
        if family is not None and family not in known:
            rule = f"{' or '.join(known)}, which the device's name may follow"
            yield Problem(f"{place}.kind", f"{device.kind!r}: {rule}")
        if family == DeviceKind.CUDA and has_cpu:
            rule = "cuda devices come first, since their place is their index in CUDA"
            yield Problem(f"{place}.kind", f"{device.kind} behind a cpu: {rule}")
        has_cpu |= family == DeviceKind.CPU
        yield from find_bad_device(place, device)


def alike_runs(path: str, devices: Sequence[DeviceSpec]) -> Iterator[tuple[str, range, DeviceSpec]]:
    """Devices that follow each other and are alike, once, with the place and the indices of all of them."""
    low = 0
    for _, group in groupby(devices, key=lambda device: replace(device, id=None)):
        alike = list(group)
        high = low + len(alike) - 1
        place = f"{path}.devices[{low}{f'-{high}' if high > low else ''}]"
        yield place, range(low, high + 1), alike[0]
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


def _end_problems(path: str, item: LinkBetween, cluster: ClusterSpec) -> Iterator[Problem]:
    """Ends that are nowhere, or that are one place."""
    low, high = item.ends
    known = _known_names(cluster)
    for end, text in zip(item.ends, item.between, strict=True):
        if not _is_known(end, known, cluster):
            yield Problem(path, f"{text}: {ENDS}")
    if low == high and low.kind in (EndKind.NODE, EndKind.DEVICE):
        yield Problem(path, f"{item.between[0]} twice: a link has two ends")


ENDS = "an address, ADDRESS/INDEX of a device, `zone NAME` or `kind NAME` of this cluster"


def _known_names(cluster: ClusterSpec) -> dict[EndKind, Collection[str]]:
    return {
        EndKind.NODE: {node.address for node in cluster.nodes},
        EndKind.ZONE: {node.zone for node in cluster.nodes if node.zone is not None},
        EndKind.KIND: {(device.kind or "").lower() for node in cluster.nodes for device in node.devices},
    }


def _is_known(end: LinkEnd, known: dict[EndKind, Collection[str]], cluster: ClusterSpec) -> bool:
    if end.kind is EndKind.KIND:
        return bool(end.name) and any(end.name.lower() in kind for kind in known[EndKind.KIND])
    if end.kind is not EndKind.DEVICE:
        return end.name in known[end.kind]
    return any(node.address == end.name and end.local < len(node.devices) for node in cluster.nodes)
