"""Clusters drawn by hypothesis, that keep all rules."""

from __future__ import annotations

from hypothesis import strategies as st

from hspmd_compiler.cluster.calibration import (
    SENDS,
    AtOnce,
    Calibration,
    Fit,
    HeldMemory,
    LayerProfile,
    LayerTime,
)
from hspmd_compiler.cluster.cluster import ClusterSpec, DeviceSpec, LinkBetween, NodeSpec
from hspmd_compiler.cluster.link import Curve, LinkKind, LinkSpec

POSITIVE = st.floats(1e-12, 1e20)
FROM_ZERO = st.floats(0, 1e6)
PART = st.floats(0.001, 1)
COUNT = st.integers(1, 1 << 50)
NAME = st.sampled_from(["a", "eu-west 1", "büro", "on", "1e3", "~"])


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Measured points, which may be faster for a larger message."""
    sizes = sorted(draw(st.sets(st.integers(1, 1 << 40), max_size=6)))
    return tuple((size, draw(st.floats(1e-9, 1e3))) for size in sizes)


links = st.builds(
    LinkSpec,
    bandwidth=st.floats(1e3, 1e15),
    latency=st.floats(0, 10),
    kind=st.none() | st.sampled_from(LinkKind),
    curve=st.just(()) | curves(),
)
devices = st.builds(
    DeviceSpec,
    kind=st.sampled_from([None, "cuda", "cuda A100", "cuda RTX 3090"]),
    memory=st.none() | COUNT,
    flops=st.none() | POSITIVE,
    peaks=st.dictionaries(st.sampled_from(["float32", "bfloat16", "float16", "float64"]), POSITIVE),
    memory_bandwidth=st.none() | POSITIVE,
    efficiency=st.none() | PART,
    memory_efficiency=st.none() | PART,
    price_per_hour=st.none() | FROM_ZERO,
    pace=POSITIVE,
)
nodes = st.builds(
    NodeSpec,
    address=st.just("unnamed"),
    devices=st.lists(devices, min_size=1, max_size=4).map(tuple),
    link=st.none() | links,
    nic=st.none() | links,
    cores=st.none() | COUNT,
    zone=st.none() | NAME,
    price_per_hour=st.none() | FROM_ZERO,
)
fits = st.builds(Fit, FROM_ZERO, FROM_ZERO, FROM_ZERO, FROM_ZERO, FROM_ZERO)
layers = st.builds(
    LayerProfile,
    kind=NAME,
    tp=COUNT,
    dtype=NAME,
    times=st.sets(st.integers(1, 64), min_size=1, max_size=4).map(
        lambda sizes: tuple(LayerTime(size, size * 0.5, size * 1.5) for size in sorted(sizes))
    ),
)
calibrations = st.builds(
    Calibration,
    date=st.just("2026-11-28"),
    torch=NAME,
    device=NAME,
    threads=COUNT,
    operators=st.dictionaries(NAME, fits, max_size=3),
    exchange=st.dictionaries(NAME, fits, max_size=2),
    collectives=st.dictionaries(NAME, fits, max_size=2),
    update=fits,
    instruction_s=FROM_ZERO,
    platform_bytes=st.integers(0, 1 << 50),
    sends=st.sampled_from(SENDS),
    buffer_bytes=st.integers(0, 1 << 30),
    posted_ahead=st.booleans(),
    layers=st.lists(layers, max_size=2).map(tuple),
    held=st.builds(HeldMemory, st.integers(0, 1 << 40), FROM_ZERO, FROM_ZERO),
    at_once=st.sets(st.integers(1, 64), max_size=3).map(
        lambda counts: tuple(AtOnce(count, 1 + count / 64, 0.01) for count in sorted(counts))
    ),
)


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSpec:
    """Of a few nodes; with ids or without."""
    found = draw(st.lists(nodes, min_size=1, max_size=3))
    ids = iter(draw(st.permutations(range(12))))
    is_numbered = draw(st.booleans())
    named = tuple(
        NodeSpec(
            f"node-{index}",
            tuple(_numbered(device, next(ids) if is_numbered else None) for device in node.devices),
            node.link,
            node.nic,
            node.cores,
            node.zone,
            node.price_per_hour,
        )
        for index, node in enumerate(found)
    )
    ends = [node.address for node in named] + [f"{node.address}/0" for node in named]
    ends += [f"zone {node.zone}" for node in named if node.zone]
    ends += [f"kind {device.kind}" for node in named for device in node.devices if device.kind]
    pairs = st.tuples(st.sampled_from(ends), st.sampled_from(ends)).filter(lambda pair: pair[0] != pair[1])
    between = draw(st.lists(st.builds(LinkBetween, pairs, links), max_size=3)) if len(ends) > 1 else []
    return ClusterSpec(named, draw(st.none() | links), tuple(between), draw(st.none() | calibrations))


def _numbered(device: DeviceSpec, number: int | None) -> DeviceSpec:
    values = {name: getattr(device, name) for name in DeviceSpec.__dataclass_fields__}
    return DeviceSpec(**{**values, "id": number})
