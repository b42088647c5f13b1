"""The rules of a cluster's figures: above zero, finite, parts of a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from ..base.bad_values import Problem
from ..base.dtypes import BYTES
from .calibration import SENDS, AtOnce, Calibration, Fit, LayerProfile
from .cluster import DeviceSpec, NodeSpec
from .link import LinkSpec

FLOATS = tuple(name for name in BYTES if "float" in name)
LARGEST_FIGURE = 1e30
ABOVE, FROM, PART, WHOLE = "a number above 0", "a number, 0 or more", "above 0, at most 1", "1 or more"


def find_bad_device(path: str, device: DeviceSpec) -> Iterator[Problem]:
    """Of one device; path: of it, or of all that are alike."""
    yield from _bad(path, ABOVE, memory=device.memory, flops=device.flops, pace=device.pace)
    yield from _bad(path, ABOVE, memory_bandwidth=device.memory_bandwidth)
    yield from _bad(path, PART, efficiency=device.efficiency, memory_efficiency=device.memory_efficiency)
    yield from _bad(path, FROM, price_per_hour=device.price_per_hour)
    for dtype, peak in device.peaks.items():
        if dtype not in FLOATS:
            yield Problem(f"{path}.peaks.{dtype}", f"an element type is one of {', '.join(FLOATS)}")
        yield from _bad(f"{path}.peaks", ABOVE, **{dtype: peak})


def find_bad_node(path: str, node: NodeSpec) -> Iterator[Problem]:
    """Of what a node has besides its devices."""
    yield from find_bad_link(f"{path}.link", node.link)
    yield from find_bad_link(f"{path}.nic", node.nic)
    yield from _bad(path, WHOLE, cores=node.cores)
    yield from _bad(path, FROM, price_per_hour=node.price_per_hour)
    if (node.zone is not None and node.zone != " ".join(node.zone.split())) or node.zone == "":
        yield Problem(f"{path}.zone", f"{node.zone!r}: a name")


def find_bad_link(path: str, link: LinkSpec | None) -> Iterator[Problem]:
    """Of a link."""
    if link is None:
        return
    if not 0 < link.bandwidth < LARGEST_FIGURE:
        yield Problem(f"{path}.bandwidth", f"{link.bandwidth:g}: bytes per second above 0")
    if not 0 <= link.latency < LARGEST_FIGURE:
        yield Problem(f"{path}.latency", f"{link.latency:g}: seconds, 0 or more")
    for index, (size, seconds) in enumerate(link.curve):
        if not (size > 0 and 0 < seconds < LARGEST_FIGURE):
            yield Problem(f"{path}.curve[{index}]", f"{size:g}, {seconds:g}: bytes and seconds above 0")
    if any(low >= high for (low, _), (high, _) in pairwise(link.curve)):
        yield Problem(f"{path}.curve", "points come in the order of their bytes, each size once")


def find_bad_calibration(path: str, calibration: Calibration | None) -> Iterator[Problem]:
    """Of what was measured."""
    if calibration is None:
        return
    yield from _bad(path, WHOLE, threads=calibration.threads)
    yield from _bad(path, FROM, instruction_s=calibration.instruction_s)
    yield from _bad(path, FROM, platform_bytes=calibration.platform_bytes)
    yield from _bad(path, FROM, buffer_bytes=calibration.buffer_bytes)
    held = calibration.held
    yield from _bad(f"{path}.held", FROM, fixed_bytes=held.fixed_bytes, share=held.share, spread=held.spread)
    if calibration.sends not in SENDS:
        yield Problem(f"{path}.sends", f"{calibration.sends!r}: one of {', '.join(SENDS)}")
    yield from _bad_fit(f"{path}.update", calibration.update)
    for name in ("operators", "exchange", "collectives"):
        fits: Mapping[str, Fit] = getattr(calibration, name)
        for key, fit in fits.items():
            yield from _bad_fit(f"{path}.{name}.{key}", fit)
    yield from _bad_at_once(f"{path}.at_once", calibration.at_once)
    for index, layer in enumerate(calibration.layers):
        yield from _bad_layer(f"{path}.layers[{index}]", layer)


def _bad_fit(path: str, fit: Fit) -> Iterator[Problem]:
    yield from _bad(path, FROM, fixed_s=fit.fixed_s, per_flop_s=fit.per_flop_s)
    yield from _bad(path, FROM, per_byte_s=fit.per_byte_s, spread=fit.spread, busy=fit.busy)


def _bad_at_once(path: str, measured: Sequence[AtOnce]) -> Iterator[Problem]:
    for index, each in enumerate(measured):
        yield from _bad(f"{path}[{index}]", WHOLE, ranks=each.ranks)
        yield from _bad(f"{path}[{index}]", ABOVE, factor=each.factor)
        yield from _bad(f"{path}[{index}]", FROM, spread=each.spread)
    if any(low.ranks >= high.ranks for low, high in pairwise(measured)):
        yield Problem(path, "numbers of ranks ascend, each once")


def _bad_layer(path: str, layer: LayerProfile) -> Iterator[Problem]:
    yield from _bad(path, WHOLE, tp=layer.tp)
    if not layer.times:
        yield Problem(f"{path}.times", "empty: a profile has at least one micro-batch size")
    for index, time in enumerate(layer.times):
        yield from _bad(f"{path}.times[{index}]", ABOVE, forward_s=time.forward_s)
        yield from _bad(f"{path}.times[{index}]", FROM, backward_s=time.backward_s)
    if any(low.micro_batch >= high.micro_batch for low, high in pairwise(layer.times)):
        yield Problem(f"{path}.times", "micro-batch sizes ascend, each once")


def _bad(path: str, rule: str, **values: float | None) -> Iterator[Problem]:
    """Those that break the rule; what is not told breaks none."""
    for name, value in values.items():
        if value is None:
            continue
        low = {ABOVE: value > 0, FROM: value >= 0, PART: 0 < value <= 1, WHOLE: value >= 1}[rule]
        if not (low and value < LARGEST_FIGURE):
            yield Problem(f"{path}.{name}", f"{value:g}: {rule}")
