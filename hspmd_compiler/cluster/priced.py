"""A cluster with all figures that prices need: those it lacks from the catalogue, or one error that asks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from ..base.bad_values import Problem, ProblemSubject
from ..base.devices import DeviceKind, family_of
from ..errors import ClusterError
from .check import alike_runs
from .cluster import PAGE, ClusterSpec, DeviceSpec, NodeSlot, NodeSpec
from .device_names import known_text
from .figures import of_catalogue, uncertain
from .node_link import node_link

PRICED = ProblemSubject(
    "a cluster to price on", ClusterError, f"hspmd profile measures them on the machine itself; {PAGE}"
)


@dataclass(frozen=True, slots=True)
class PricedCluster:
    """notes: what was taken from the catalogue, and which of it is uncertain."""

    cluster: ClusterSpec
    notes: tuple[str, ...] = ()


def priced_cluster(
    cluster: ClusterSpec, slots: Collection[NodeSlot], dtypes: Sequence[str], at: str = ""
) -> PricedCluster:
    """The cluster with every figure that ranks on these slots need; one ClusterError lists what lacks."""
    notes: list[str] = []
    nodes = tuple(
        _completed(node, notes) if any(slot.node == index for slot in slots) else node
        for index, node in enumerate(cluster.nodes)
    )
    whole = replace(cluster, nodes=nodes)
    missing = list(_missing(whole, sorted(slots), dtypes))
    has_unknown = any(problem.path.endswith(".kind") for problem in missing)
    (replace(PRICED, fix=f"{PRICED.fix}; {known_text()}") if has_unknown else PRICED).refuse(missing, at)
    notes += uncertain([whole.device_of(slot) for slot in sorted(slots)], dtypes)
    return PricedCluster(whole, tuple(dict.fromkeys(notes)))


def _completed(node: NodeSpec, notes: list[str]) -> NodeSpec:
    """With figures of the catalogue where the node tells none."""
    done: dict[DeviceSpec, DeviceSpec] = {}
    devices = []
    for device in node.devices:
        key = replace(device, id=None)
        if key not in done:
            done[key] = _completed_device(key, notes)
        devices.append(replace(done[key], id=device.id))
    named = [of_catalogue(device) for device in node.devices]
    link = node.link
    if link is None and len(named) > 1 and None not in named:
        found = node_link([each.device for each in named if each is not None])
        link = found.link
        notes += (f"{node.address}: link from the catalogue", *found.notes)
    return replace(node, devices=tuple(devices), link=link)


def _completed_device(device: DeviceSpec, notes: list[str]) -> DeviceSpec:
    named = of_catalogue(device)
    if named is None:
        return device
    spec = named.device.spec
    lacks_peaks = device.flops is None and not device.peaks
    lacking = {
        "memory": device.memory is None,
        "peaks": lacks_peaks,
        "memory_bandwidth": device.memory_bandwidth is None,
    }
    names = [name for name, is_lacking in lacking.items() if is_lacking]
    if names:
        told = ", ".join(name.replace("_", " ") for name in names)
        notes += [f"{device.kind}: {told} of {named.device.name} from the catalogue"]
        notes += [named.note] if named.note else []
    return replace(device, **{name: getattr(spec, name) for name in names})


def _missing(cluster: ClusterSpec, slots: Sequence[NodeSlot], dtypes: Sequence[str]) -> Iterator[Problem]:
    for index, node in enumerate(cluster.nodes):
        used = {slot.local for slot in slots if slot.node == index}
        for place, places, device in alike_runs(f"nodes[{index}]", node.devices):
            if used & set(places):
                yield from _missing_of(place, device, dtypes, cluster.calibration is not None)
    if cluster.calibration is None or not cluster.calibration.exchange:
        yield from _missing_links(cluster, slots)


def _missing_of(
    place: str, device: DeviceSpec, dtypes: Sequence[str], is_measured: bool
) -> Iterator[Problem]:
    """Figures that a device lacks; where it was measured, only its memory counts."""
    lacking = [("memory", "bytes")] if device.memory is None else []
    if not is_measured:
        if device.memory_bandwidth is None:
            lacking.append(("memory_bandwidth", "bytes per second"))
        lacking += [
            (f"peaks.{dtype}", "operations per second") for dtype in dtypes if device.peak(dtype) is None
        ]
    for name, unit in lacking:
        yield Problem(f"{place}.{name}", f"missing: {unit}")
    is_named = device.kind is not None and family_of(device.kind) == DeviceKind.CUDA
    if lacking and is_named and of_catalogue(device) is None:
        yield Problem(f"{place}.kind", f"{device.kind!r}: unknown, the catalogue has no figures of it")


def _missing_links(cluster: ClusterSpec, slots: Sequence[NodeSlot]) -> Iterator[Problem]:
    """Where two ranks would talk over nothing."""
    for index, node in enumerate(cluster.nodes):
        own = [slot for slot in slots if slot.node == index and node.link is None]
        if any(cluster.path(*pair) is None for pair in combinations(own, 2)):
            yield Problem(f"nodes[{index}].link", "missing: between the devices of the node")
    bare = [slot for slot in slots if cluster.link is None and cluster.node_of(slot).nic is None]
    apart = (pair for pair in combinations(bare, 2) if pair[0].node != pair[1].node)
    if any(cluster.path(*pair) is None for pair in apart):
        yield Problem("link", "missing: between the nodes; or each node's nic")
