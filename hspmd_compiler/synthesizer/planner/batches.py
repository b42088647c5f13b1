"""Samples of a step shared out to groups of devices, evenly or by their speeds, and cut in micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from ...layout.shares import assign_units
from ...strategy.strategy import PipelineSpec, StageSpec, Strategy
from .groupings import Grouping
from .planned_devices import PlannedDevices

FINEST = 100
"""The largest weight that says a speed, so that a person can read it."""


def even_samples(batch: int, groups: int) -> tuple[int, ...]:
    """As many each; the first have one more of what remains."""
    return assign_units(batch, [1] * groups)


def samples_by_speed(batch: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """So that the last of all groups is done as early as can be."""
    return assign_units(batch, speeds)


def shares_by_speed(speeds: Sequence[float]) -> tuple[int, ...] | None:
    """Integer weights; None where all are alike. A device of less than a 200th of the quickest gets none."""
    if len(set(speeds)) == 1:
        return None
    weights = [round(FINEST * speed / max(speeds)) for speed in speeds]
    divisor = gcd(*weights)
    return tuple(weight // divisor for weight in weights)


def micro_batches(samples: int, count: int) -> tuple[int, ...]:
    """So many micro-batches that differ by one sample at most; no more than there are samples."""
    return assign_units(samples, [1] * min(count, samples))


def strategy_of(
    grouping: Grouping,
    samples: Sequence[int],
    layers: int,
    devices: PlannedDevices,
    *,
    count: int = 1,
    shares: Sequence[tuple[int, ...] | None] | None = None,
) -> Strategy | None:
    """Each group a pipeline of one stage with so many samples; a group without any is left out.

    count: micro-batches of each. shares: of each group's devices. None: the devices that are left would not
    find their places on the cluster.
    """
    pipelines = []
    for at, (group, size) in enumerate(zip(grouping.groups, samples, strict=True)):
        if size:
            own = None if shares is None else shares[at]
            stage = StageSpec(group, (0, layers), own)
            pipelines.append(PipelineSpec((stage,), micro_batches(size, count)))
    strategy = Strategy(tuple(pipelines))
    return strategy if devices.can_leave_out(strategy.devices) else None
