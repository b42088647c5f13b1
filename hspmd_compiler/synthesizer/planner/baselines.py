"""What a plan is measured against: data parallelism, even and by speed; tensor parallelism of all degrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...cluster.cluster import DeviceSpec
from ...layout.shares import assign_units
from .batches import even_samples, strategy_of
from .candidates import PlanCandidate
from .groupings import Grouping, even_groupings
from .planned_devices import PlannedDevices

DP_EV, DP_CP, ONE = "DP-EV", "DP-CP", "one device"
Speeds = Mapping[DeviceSpec, float]
"""Of each kind of device, in any unit."""


def baselines(devices: PlannedDevices, speeds: Speeds, batch: int, layers: int) -> Iterator[PlanCandidate]:
    """All of them that the devices and the samples allow; of one device both are the same."""
    single = Grouping(tuple((one,) for one in devices.ids))
    shares = {
        DP_EV: even_samples(batch, len(devices.ids)),
        DP_CP: assign_units(batch, [speeds[device.kind] for device in devices.devices]),
    }
    for name, samples in shares.items():
        strategy = strategy_of(single, samples, layers, devices)
        if strategy is not None:
            yield PlanCandidate(name, strategy)
    yield from _alone(devices, speeds, batch, layers)
    for grouping in even_groupings(devices.ids):
        degree = len(grouping.groups[0])
        strategy = strategy_of(grouping, even_samples(batch, len(grouping.groups)), layers, devices)
        if degree > 1 and strategy is not None:
            beside = f" x DP {len(grouping.groups)}" if len(grouping.groups) > 1 else ""
            yield PlanCandidate(f"TP {degree}{beside}", strategy)


def _alone(devices: PlannedDevices, speeds: Speeds, batch: int, layers: int) -> Iterator[PlanCandidate]:
    """The quickest device that may stand alone, where there are others."""
    if len(devices.ids) == 1:
        return
    for device in sorted(devices.devices, key=lambda one: -speeds[one.kind]):
        strategy = strategy_of(Grouping(((device.id,),)), (batch,), layers, devices)
        if strategy is not None:
            yield PlanCandidate(ONE, strategy)
            return
