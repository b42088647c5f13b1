"""Flags of `hspmd run`: a trace of devices that are lost, come back or are slow, made to happen."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...cluster.device_trace import DeviceTrace
    from ...runtime.elastic.presence import Presence
    from ...runtime.engine import Engine


def add_flags(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="with --elastic: a trace of devices that are lost, come back or are slow; it is made to happen",
    )


def check(args: Namespace) -> list[tuple[str, str]]:
    """What is wrong with them, as (flag, text)."""
    if args.replay is None or args.elastic:
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


def presences(trace: DeviceTrace) -> list[Presence]:
    """What a launcher makes happen: all moments but the start."""
    from ...runtime.elastic.presence import Presence

    return [Presence(frozenset(each.present), each.step, each.seconds) for each in trace.moments[1:]]


def waits(args: Namespace, engine: Engine, started: float) -> Callable[[int], None]:
    """What a rank calls before each step, to be as slow as its device. started: the run, by `monotonic`."""
    from ...cluster.device_trace import read_device_trace
    from ...runtime.timing.slow_device import SlowDevice, SlowFrom

    if args.replay is None or engine.active.is_idle:
        return lambda step: None
    device = engine.rank_program.device
    moments = read_device_trace(args.replay).moments
    found = [SlowFrom(each.slow.get(device, 1.0), each.step, each.seconds) for each in moments]
    return SlowDevice(found, started).before_step
