"""A ClusterSpec with what a profile measured: of the machines it ran on, or of a given one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import torch

from ..base.devices import DeviceKind, family_of
from ..cluster.calibration import Calibration, Fit
from ..cluster.cluster import ClusterSpec, DeviceSpec, NodeSpec
from ..cluster.link import LinkKind, LinkSpec
from .fits import fit
from .session import LOCAL, NETWORK, Measurements

MATMUL, STREAM = "matmul", "elementwise"


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine that took part. device: of each rank on it, with its memory in bytes."""

    address: str
    device: str
    memory: int
    ranks: int
    cores: int | None


def this_machine(device: torch.device, ranks: int) -> Machine:
    """What this process runs on."""
    address = os.uname().nodename or "localhost"
    if device.type == DeviceKind.CPU.value:
        cores = usable_cores()
        return Machine(address, DeviceKind.CPU.value, physical_bytes() // ranks, ranks, cores)
    found = torch.cuda.get_device_properties(device)
    return Machine(address, f"{DeviceKind.CUDA.value} {found.name}", found.total_memory, ranks, None)


def usable_cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def calibrated(
    measured: Measurements, machines: Sequence[Machine], threads: int, given: ClusterSpec | None
) -> ClusterSpec:
    """The cluster with a calibration and the links that were measured. given: instead of these machines."""
    calibration = calibration_of(measured, machines[0].device, threads)
    local, network = (link_of(measured, name) for name in (LOCAL, NETWORK))
    if given is None:
        nodes = tuple(_node(machine, calibration, local) for machine in machines)
        return ClusterSpec(nodes, link=network, calibration=calibration)
    family = family_of(machines[0].device)
    nodes = tuple(
        replace(node, link=local or node.link) if _is_of(node, family) else node for node in given.nodes
    )
    return replace(given, nodes=nodes, link=network or given.link, calibration=calibration)


def calibration_of(measured: Measurements, device: str, threads: int) -> Calibration:
    """What cost models read."""
    exchange = {name: fit(samples) for name, samples in measured.messages.items()}
    exchange |= {f"{name}:packed": fit(samples) for name, samples in measured.padded.items()}
    names = [name for name in (LOCAL, NETWORK) if name in exchange]
    if names:
        exchange["send"] = exchange[names[-1]]
    return Calibration(
        date=datetime.now(UTC).date().isoformat(),
        torch=str(torch.__version__),
        device=device,
        threads=threads,
        update=measured.update,
        instruction_s=measured.instruction_s,
        platform_bytes=measured.platform_bytes,
        sends="blocking" if measured.waits else "async",
        operators=measured.operators,
        exchange=exchange,
        collectives={
            name: replace(fit(samples), busy=float(np.median(measured.busy[name])))
            for name, samples in measured.collectives.items()
        },
        buffer_bytes=measured.buffer_bytes,
        posted_ahead=False,
        layers=measured.layers,
        at_once=measured.at_once,
    )


def link_of(measured: Measurements, name: str) -> LinkSpec | None:
    """A link from its messages: their curve, and what a byte more costs behind its last point."""
    samples = measured.messages.get(name)
    if not samples:
        return None
    found = fit(samples)
    curve = tuple((int(sample.size_bytes), sample.seconds) for sample in samples)
    last = curve[-1]
    bandwidth = 1 / found.per_byte_s if found.per_byte_s else last[0] / last[1]
    return LinkSpec(bandwidth, found.fixed_s, LinkKind.LOCAL if name == LOCAL else LinkKind.NETWORK, curve)


def _node(machine: Machine, calibration: Calibration, link: LinkSpec | None) -> NodeSpec:
    """What operators reached is all that is known of a device's figures."""
    operators: Mapping[str, Fit] = calibration.operators
    products = {
        name.partition(":")[2]: 1 / of.per_flop_s
        for name, of in operators.items()
        if name.startswith(f"{MATMUL}:") and of.per_flop_s
    }
    stream = operators.get(f"{STREAM}:float32")
    device = DeviceSpec(
        kind=machine.device,
        memory=machine.memory,
        peaks=products,
        memory_bandwidth=1 / stream.per_byte_s if stream and stream.per_byte_s else None,
        efficiency=1.0,
        memory_efficiency=1.0,
    )
    return NodeSpec(machine.address, (device,) * machine.ranks, link, cores=machine.cores)


def _is_of(node: NodeSpec, family: str) -> bool:
    return any(device.kind is None or family_of(device.kind) == family for device in node.devices)
