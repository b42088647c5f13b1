"""Flags of `hspmd run`: a trace of devices that are lost, come back or are slow, made to happen."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...cluster.device_trace import DeviceTrace
    from ...runtime.timing.slow_device import SlowDevice


def add_flags(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="with --elastic: a trace of devices that are lost, come back or are slow; it is made to happen",
    )


def check(args: Namespace) -> list[tuple[str, str]]:
    """What is wrong with them, as (flag, text)."""
    if args.replay is None or getattr(args, "elastic", False):
        return []
    return [("--replay", "goes with --elastic only")]


def trace_of(path: Path | None, known: Collection[int]) -> DeviceTrace | None:
    """The trace to replay. known: devices that the strategies use; one error lists all others."""
    from ...cluster.device_trace import check_devices, read_device_trace

    if path is None:
        return None
    trace = read_device_trace(path)
    check_devices(trace, known, str(path))
    return trace


def slow_device(trace: DeviceTrace, device: int, started: float) -> SlowDevice:
    """What a rank on this device calls before each step. started: when the run began, by `monotonic`."""
    from ...runtime.timing.slow_device import SlowDevice, SlowFrom

    return SlowDevice(
        [SlowFrom(each.slow.get(device, 1.0), each.step, each.seconds) for each in trace.moments], started
    )
