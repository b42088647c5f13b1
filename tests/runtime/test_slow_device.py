"""A slow device waits in proportion to what it computed, from its moment on."""

from __future__ import annotations

import pytest

from hspmd_compiler.runtime.timing.slow_device import SlowDevice, SlowFrom


def waits(moments: list[SlowFrom], steps: int) -> list[float]:
    """What it waits before each step, where each computes for 2 seconds, and 10 pass."""
    passed, computed, waited = [0.0], [0.0], list[float]()
    device = SlowDevice(moments, 0.0, lambda: passed[0], lambda: computed[0], waited.append)
    found = []
    for step in range(1, steps + 1):
        waited.clear()
        device.before_step(step)
        found.append(sum(waited))
        computed[0] += 2
        passed[0] += 10
    return found


@pytest.mark.parametrize(
    ("moments", "wanted"),
    [
        ([], [0, 0, 0, 0, 0]),
        ([SlowFrom(1.0, step=0)], [0, 0, 0, 0, 0]),
        ([SlowFrom(3.0, step=2)], [0, 0, 4, 4, 4]),
        ([SlowFrom(1.5, step=0), SlowFrom(4.0, step=3)], [0, 1, 1, 6, 6]),
        ([SlowFrom(2.0, seconds=15), SlowFrom(1.0, seconds=40)], [0, 0, 2, 2, 0]),
    ],
)
def test_waits(moments: list[SlowFrom], wanted: list[float]) -> None:
    assert waits(moments, 5) == pytest.approx(wanted)
