"""The devices that a plan may use: by id, with their kinds; refused where a price lacks a figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...base.devices import DeviceKind, family_of
from ...cluster.check import check_cluster
from ...cluster.cluster import ClusterSpec, DeviceSpec, NodeSlot
from ...cluster.completed import CompletedCluster, completed_cluster
from ...cost_models.compute import DeviceRates
from ...cost_models.steps.figures import check_ranks
from ...ir.graph import LogicalGraph


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """A device. id: by which a strategy names it. kind: its figures, which those that are alike share."""

    id: int
    slot: NodeSlot
    kind: DeviceSpec


@dataclass(frozen=True)
class PlannedDevices:
    """All of a cluster, by ascending id. cluster: with what the catalogue knows of it, told in notes."""

    cluster: ClusterSpec
    devices: tuple[PlannedDevice, ...]
    notes: tuple[str, ...] = ()

    @property
    def ids(self) -> tuple[int, ...]:
        """By which a strategy names them."""
        return tuple(device.id for device in self.devices)

    @cached_property
    def kinds(self) -> tuple[DeviceSpec, ...]:
        """Each kind once, in the order of its first device."""
        return tuple(dict.fromkeys(device.kind for device in self.devices))

    @cached_property
    def by_id(self) -> dict[int, PlannedDevice]:
        """Devices by their ids."""
        return {device.id: device for device in self.devices}

    @property
    def family(self) -> DeviceKind:
        """What programs are compiled for."""
        families = {family_of(kind.kind) for kind in self.kinds if kind.kind}
        return DeviceKind.CUDA if DeviceKind.CUDA in families else DeviceKind.CPU

    def can_leave_out(self, used: Iterable[int]) -> bool:
        """Whether a strategy of these devices alone finds them: by ids, or as the first of all."""
        left = tuple(sorted(used))
        return self.cluster.names_devices or left == self.ids[: len(left)]

    def node_of(self, device: int) -> str:
        """The address of a device's node."""
        return self.cluster.node_of(self.by_id[device].slot).address

    def alone(self, kind: DeviceSpec) -> ClusterSpec:
        """A cluster of one device of a kind, to price a program of one rank on it."""
        slot = next(device.slot for device in self.devices if device.kind == kind)
        node = self.cluster.node_of(slot)
        return replace(self.cluster, nodes=(replace(node, devices=(kind,)),), links=())


def devices_of(cluster: ClusterSpec, graph: LogicalGraph, at: str = "") -> PlannedDevices:
    """All devices, checked as `check_machines` does. at: where the cluster comes from, for errors."""
    found = check_machines(cluster, _product_types(graph), at)
    devices = sorted(_devices(found.cluster), key=lambda device: device.id)
    return PlannedDevices(found.cluster, tuple(devices), found.notes)


def check_machines(
    cluster: ClusterSpec, types: Sequence[str] | None = None, at: str = ""
) -> CompletedCluster:
    """The cluster as a plan needs it: one error lists all values that break a rule, else one all figures that
    lack. types: that products are computed in; None: not known yet, which a peak in any type satisfies.
    """
    check_cluster(cluster, at)
    found = completed_cluster(cluster, tuple(cluster.slots), types or ())
    slots = dict(enumerate(found.cluster.slots))
    rates = {rank: _rates(found.cluster, slot) for rank, slot in slots.items()}
    check_ranks(found.cluster, slots, rates, types)
    return found


def _rates(cluster: ClusterSpec, slot: NodeSlot) -> DeviceRates:
    spec = cluster.device_of(slot)
    return DeviceRates.of(spec, family_of(spec.kind or DeviceKind.CPU), cluster.calibration)


def _devices(cluster: ClusterSpec) -> Iterable[PlannedDevice]:
    for place, slot in enumerate(cluster.slots):
        spec = cluster.device_of(slot)
        yield PlannedDevice(place if spec.id is None else spec.id, slot, replace(spec, id=None))


def _product_types(graph: LogicalGraph) -> Sequence[str]:
    """Element types of what has parameters: those that products are computed in."""
    read = (graph.rows[param.row].dtype for param in graph.params.values() if not param.is_buffer)
    kinds = {dtype for dtype in read if dtype is not None and dtype.is_floating_point}
    return sorted(str(dtype).removeprefix("torch.") for dtype in kinds)
