"""A cluster with figures that its file leaves out and the catalogue knows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from ..base.devices import DeviceKind, family_of
from .cluster import ClusterSpec, DeviceSpec, NodeSlot, NodeSpec
from .device_names import known_text
from .figures import of_catalogue, uncertain
from .node_link import node_link


@dataclass(frozen=True, slots=True)
class CompletedCluster:
    """notes: what was taken from the catalogue, and which figures are uncertain."""

    cluster: ClusterSpec
    notes: tuple[str, ...] = ()


def completed_cluster(
    cluster: ClusterSpec, slots: Collection[NodeSlot], dtypes: Iterable[str]
) -> CompletedCluster:
    """The cluster as far as ranks on these slots, that compute in these types, use it."""
    notes: list[str] = []
    used = {slot.node for slot in slots}
    nodes = tuple(
        _completed(node, notes) if index in used else node for index, node in enumerate(cluster.nodes)
    )
    whole = replace(cluster, nodes=nodes)
    notes += uncertain([whole.device_of(slot) for slot in sorted(slots)], dtypes)
    return CompletedCluster(whole, tuple(dict.fromkeys(notes)))


def unknown_text(devices: Iterable[DeviceSpec]) -> str:
    """Which of these named devices the catalogue lacks and what it has, for an error; empty: it has them."""
    kinds = (device.kind for device in devices if of_catalogue(device) is None)
    unknown = [kind for kind in dict.fromkeys(kinds) if kind and family_of(kind) == DeviceKind.CUDA]
    return f"not in the catalogue: {', '.join(unknown)}; {known_text()}" if unknown else ""


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
