"""What a cluster says in numbers: links, peaks, prices; their units, and all of them back from a file."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hspmd_compiler.base import quantities
from hspmd_compiler.base.quantities import Quantity
from hspmd_compiler.cluster.calibration import AtOnce, Calibration, Fit
from hspmd_compiler.cluster.check import check_cluster, find_cluster_problems
from hspmd_compiler.cluster.check_figures import find_bad_calibration
from hspmd_compiler.cluster.cluster import (
    EFFICIENCY,
    MEMORY_EFFICIENCY,
    ClusterSpec,
    DeviceSpec,
    LinkBetween,
    NodeSlot,
    NodeSpec,
)
from hspmd_compiler.cluster.form import cluster_from
from hspmd_compiler.cluster.launch_plan import bind_ranks
from hspmd_compiler.cluster.link import LinkKind, LinkSpec
from hspmd_compiler.cluster.read import read_cluster, write_cluster
from hspmd_compiler.cluster.written import cluster_form
from hspmd_compiler.errors import ClusterError

from .drawn import clusters, links

Expect = Callable[[str, str], None]

V100 = DeviceSpec("cuda V100", peaks={"float16": 125e12, "float32": 15e12}, memory_bandwidth=9e11)
FAST, SLOW, NEAR = LinkSpec(1e11, 1e-6), LinkSpec(1e9, 5e-6), LinkSpec(3e11, kind=LinkKind.NVLINK)

BAD_FIGURES = """
nodes:
- address: a
  devices:
  - {count: 2, kind: cuda V100, memory: -80GiB, peaks: {float16: .nan, half: 1.0e+12}, memory_bandwidth: 9GB}
  - {kind: gpu, memory: .inf, flops: 0, efficiency: 1.5, memory_efficiency: 140%, price_per_hour: -1, pace: 0}
  link: {bandwidth: 25G, latency: 5 metres, kind: string}
  nic: {bandwidth: 25gb/s, latency: -1us, curve: [[4096, 1.0e-5], [1024, 2.0e-5], [0, 1]]}
  cores: 0
  zone: ""
  price_per_hour: free
- {address: a/b, devices: [{count: 1, memory: 80Gi}]}
link: {bandwidth: .inf}
links:
- {between: [a, zone x], bandwidth: 1e9}
- {between: [a/7, kind H100], bandwidth: 312TFLOP/s}
calibration:
  {date: "2026-11-28", torch: 2.11.0, device: cpu, threads: 0, operators: {"matmul:float32": {fixed_s: -1}},
   exchange: {}, collectives: {}, update: {fixed_s: .nan}, instruction_s: 0, platform_bytes: -1, sends: never}
"""


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(cluster=clusters(), suffix=st.sampled_from(["json", "yaml"]))
def test_any_cluster_reads_back_alike(tmp_path: Path, cluster: ClusterSpec, suffix: str) -> None:
    assert find_cluster_problems(cluster) == []
    assert cluster_from(cluster_form(cluster)) == cluster
    write_cluster(cluster, tmp_path / f"cluster.{suffix}")
    assert read_cluster(tmp_path / f"cluster.{suffix}") == cluster


def test_every_bad_figure_is_told_at_once(tmp_path: Path, expect: Expect) -> None:
    (tmp_path / "cluster.yaml").write_text(BAD_FIGURES)
    with pytest.raises(ClusterError) as caught:
        read_cluster(tmp_path / "cluster.yaml")
    expect("cluster/figures", str(caught.value).replace(str(tmp_path), "FOLDER"))


def test_figures_made_in_python_keep_the_same_rules(expect: Expect) -> None:
    nan = float("nan")
    device = DeviceSpec(memory=-1, flops=nan, peaks={"half": 1.0, "float32": -1.0}, efficiency=2, pace=nan)
    node = NodeSpec("a", (device,), LinkSpec(nan, nan), LinkSpec(1, curve=((2, 1.0), (1, nan))), 0, " ", -1)
    made = ClusterSpec((node,), links=(LinkBetween(("a", "a"), SLOW), LinkBetween(("a/0", "a/1"), SLOW)))
    with pytest.raises(ClusterError) as caught:
        check_cluster(made)
    expect("cluster/figures_in_python", str(caught.value))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"nic": {"bandwidth": 1, "curve": [[1, "x"], [2]]}}, ["nic.curve[0][1] ", "nic.curve[1] "]),
        ({"devices": [{"ids": [0, "x"]}]}, ["devices[0].ids "]),
        ({"devices": [{"peaks": {"float32": "x"}}, 7]}, ["devices[0].peaks.float32 ", "devices[1] "]),
        ({"link": 7}, ["link "]),
        ({"zone": "two\nlines"}, ["zone "]),
    ],
)
def test_what_is_wrong_deep_inside_is_told_once(change: dict[str, object], told: list[str]) -> None:
    node = {"address": "a", "devices": [{"count": 1}], **change}
    with pytest.raises(ClusterError) as caught:
        cluster_from({"nodes": [node, {**node, "address": 7}]})
    text = " ".join(str(caught.value).split())
    places = [f"nodes[{index}].{place}" for index in (0, 1) for place in told]
    assert [text.count(place) for place in places] == [1] * len(places)
    assert text.count("nodes[") == len(places) + 1  # and the address


def test_a_calibration_that_lacks_keys_is_told_whole(expect: Expect) -> None:
    form = {
        "date": 7,
        "operators": {"m": {"fixed_s": "x"}, "n": {}},
        "update": {"fixed_s": []},
        "layers": [{"kind": "k", "tp": 1, "dtype": "d", "times": [[1, 2], [1, 2, "x"]]}],
        "colour": "red",
    }
    with pytest.raises(ClusterError) as caught:
        cluster_from({"nodes": [], "calibration": form})
    expect("cluster/calibration", str(caught.value))


@pytest.mark.parametrize(
    ("quantity", "text", "value"),
    [
        (quantities.BYTE_COUNT, "80GiB", 80 << 30),
        (quantities.BYTE_COUNT, " 80 gb ", 80e9),
        (quantities.BANDWIDTH, "25Gbit", 25e9 / 8),
        (quantities.BANDWIDTH, "25Gbps", 25e9 / 8),
        (quantities.BANDWIDTH, "100GbE", 100e9 / 8),
        (quantities.BANDWIDTH, "1.5 GB/s", 1.5e9),
        (quantities.BANDWIDTH, "1e9", 1e9),
        (quantities.DURATION, "5us", 5e-6),
        (quantities.DURATION, "0", 0),
        (quantities.RATE, "312TFLOP/s", 312e12),
        (quantities.RATE, "312 tflops", 312e12),
        (quantities.PART, "40%", 0.4),
    ],
)
def test_units(quantity: Quantity, text: str, value: float) -> None:
    assert math.isclose(quantity.read(text), value, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        (quantities.BYTE_COUNT, "80G"),
        (quantities.BYTE_COUNT, "80GB/s"),
        (quantities.BYTE_COUNT, "1e9999B"),
        (quantities.BANDWIDTH, "25gb/s"),  # bits or bytes
        (quantities.BANDWIDTH, "25gbps"),
        (quantities.BANDWIDTH, "25GB"),
        (quantities.BANDWIDTH, "nan"),
        (quantities.DURATION, "5m"),
        (quantities.DURATION, "-5us"),
        (quantities.RATE, "312T"),
        (quantities.PART, "140%"),
        (quantities.PART, ""),
    ],
)
def test_units_that_do_not_fit(quantity: Quantity, text: str) -> None:
    with pytest.raises(ValueError, match="such as"):
        quantity.read(text)


@settings(max_examples=200, deadline=None)
@given(links, st.lists(st.floats(0, 1e13), min_size=2, max_size=8))
def test_a_larger_message_is_no_faster(link: LinkSpec, sizes: list[float]) -> None:
    seconds = [link.seconds(size) for size in sorted(sizes)]
    assert seconds == sorted(seconds)
    assert all(each >= 0 for each in seconds)


@settings(max_examples=200, deadline=None)
@given(links.filter(lambda link: bool(link.curve)))
def test_a_curve_holds_at_its_points(link: LinkSpec) -> None:
    """Where it ascends; a point that is slower than a larger one's is as fast as that."""
    for index, (size, _) in enumerate(link.curve):
        least = min(seconds for _, seconds in link.curve[index:])
        assert math.isclose(link.seconds(size), least, rel_tol=1e-9)
    most, last = link.curve[-1]
    beyond = link.seconds(most + link.bandwidth)
    assert math.isclose(beyond, last + 1, rel_tol=1e-9)


def test_a_link_without_a_curve() -> None:
    assert SLOW.seconds(0) == 5e-6
    assert SLOW.seconds(1e9) == 1 + 5e-6


def test_between_two_points_the_line_is_straight_in_logarithms() -> None:
    link = LinkSpec(1e9, curve=((100, 1.0), (10_000, 100.0)))
    assert math.isclose(link.seconds(1000), 10.0)


def test_peaks_by_element_type() -> None:
    assert V100.peak("float16") == 125e12
    assert not V100.emulates("float16")
    assert V100.emulates("bfloat16")
    assert V100.peak("bfloat16") == V100.peak("float32") == 15e12
    assert V100.peak("float64") is V100.peak("int64") is None
    assert V100.achieved("float16") == 125e12 * EFFICIENCY
    assert replace(V100, efficiency=0.5).achieved("float16") == 125e12 / 2
    assert V100.achieved_bandwidth == 9e11 * MEMORY_EFFICIENCY


def test_flops_are_of_both_16_bit_types() -> None:
    device = DeviceSpec(flops=1e14)
    assert [device.peak(name) for name in ("float16", "bfloat16", "float32")] == [1e14, 1e14, None]
    assert replace(device, peaks={"float32": 1e13}).peak("bfloat16") == 1e14
    assert DeviceSpec().achieved("float16") is DeviceSpec().achieved_bandwidth is None


def network(*between: LinkBetween, nic: LinkSpec | None = None, link: LinkSpec | None = SLOW) -> ClusterSpec:
    """Nodes a and b in zone x, c in zone y, of two devices each."""
    zones = {"a": "x", "b": "x", "c": "y"}
    kinds = {"a": "cuda A100", "b": "cuda T4", "c": "cuda T4"}
    return ClusterSpec(
        tuple(
            NodeSpec(name, (DeviceSpec(kinds[name], memory_bandwidth=2e12),) * 2, NEAR, nic, zone=zone)
            for name, zone in zones.items()
        ),
        link,
        between,
    )


A, A1, B, C = NodeSlot(0, 0), NodeSlot(0, 1), NodeSlot(1, 0), NodeSlot(2, 1)
ZONES = LinkBetween(("zone x", "zone y"), LinkSpec(1e6))
KINDS = LinkBetween(("kind a100", "kind t4"), LinkSpec(2e6))
NODES = LinkBetween(("c", "a"), LinkSpec(3e6))
DEVICES = LinkBetween(("a/0", "c/1"), LinkSpec(4e6))
PAIR = LinkBetween(("a/1", "a/0"), LinkSpec(5e6))


def test_the_most_precise_link_holds() -> None:
    for order in ((KINDS, ZONES, NODES, DEVICES), (DEVICES, NODES, ZONES, KINDS)):
        for least, wanted in enumerate((4e6, 3e6, 1e6, 2e6)):
            known = [DEVICES, NODES, ZONES, KINDS][least:]
            cluster = network(*(item for item in order if item in known))
            for ends in ((A, C), (C, A)):
                found = cluster.path(*ends)
                assert found is not None and found.bandwidth == wanted


def test_a_link_holds_where_its_ends_are() -> None:
    cluster = network(ZONES, KINDS, PAIR)
    assert cluster.path(A, A1) == LinkSpec(5e6)
    assert network(ZONES, KINDS, NODES).path(A, A1) == NEAR
    assert cluster.path(B, C) == LinkSpec(1e6)
    assert network(NODES).path(A, B) == SLOW
    assert cluster.path(A, A) == LinkSpec(1e12, kind=LinkKind.LOCAL)
    assert ClusterSpec((NodeSpec("a", (DeviceSpec(),)),)).path(A, A) is None


def test_a_network_is_as_slow_as_its_slowest_part() -> None:
    nic = LinkSpec(5e8, 1e-5, LinkKind.NETWORK)
    assert network(nic=nic).path(A, B) == nic
    assert network(nic=replace(nic, bandwidth=2e9)).path(A, B) == replace(SLOW, latency=1e-5)
    assert network(nic=nic, link=None).path(A, B) == nic
    assert network(link=None).path(A, B) is None
    assert network(DEVICES, nic=nic).path(A, C) == DEVICES.link
    assert [network(DEVICES).shares_nic(*ends) for ends in ((A, B), (A, C), (A, A1))] == [True, False, False]


def test_prices_add_up() -> None:
    node = NodeSpec("a", (DeviceSpec(price_per_hour=1.5),) * 2)
    whole = NodeSpec("b", (DeviceSpec(price_per_hour=1.5),), price_per_hour=10.0)
    assert (node.price, whole.price) == (3.0, 10.0)
    assert ClusterSpec((node, whole)).price == 13.0
    assert ClusterSpec((node, NodeSpec("c", (DeviceSpec(),)))).price is None


def test_ranks_sit_where_the_launch_puts_them() -> None:
    assert bind_ranks([3, 5, 9], ["cuda"] * 3, network()) == (A, A1, B)
    numbered = ClusterSpec((NodeSpec("a", (DeviceSpec(id=9), DeviceSpec(id=3))),))
    assert bind_ranks([3, 9], ["cpu"] * 2, numbered) == (A1, A)


def test_ranks_at_once_are_slowed_as_measured_and_evenly_between() -> None:
    bare = Calibration("2026-11-28", "2.11.0", "cpu", 1, {}, {}, {}, Fit(0.0), 0.0, 0, "async")
    found = replace(bare, at_once=(AtOnce(2, 1.0), AtOnce(4, 1.5), AtOnce(8, 1.25)))
    assert [bare.slowdown(count) for count in (1, 2, 64)] == [1.0] * 3
    assert [found.slowdown(count) for count in (1, 2, 3, 4, 6, 8, 9)] == [1, 1, 1.25, 1.5, 1.375, 1.25, 1.25]


def test_bad_figures_of_ranks_at_once_are_told() -> None:
    fit = Fit(0.0)
    told = (AtOnce(4, 0.0), AtOnce(0, 1.0, -1.0))
    bad = replace(
        Calibration("2026-11-28", "2.11.0", "cpu", 1, {}, {}, {}, fit, 0.0, 0, "async"),
        at_once=told,
        collectives={"all_reduce:2:one_node": Fit(1.0, busy=float("nan"))},
    )
    places = [problem.path for problem in find_bad_calibration("c", bad)]
    assert places == [
        "c.collectives.all_reduce:2:one_node.busy",
        "c.at_once[0].factor",
        "c.at_once[1].ranks",
        "c.at_once[1].spread",
        "c.at_once",
    ]


def test_a_profile_from_elsewhere_says_so() -> None:
    fit = Fit(1.0, 2.0, 3.0)
    assert (fit.seconds(), fit.seconds(10.0), fit.seconds(bytes=10.0)) == (1.0, 21.0, 31.0)
    found = Calibration("2026-11-28", "2.11.0", "cpu", 1, {}, {}, {}, fit, 0.0, 0, "async")
    assert found.find_differences("2.11.0", "cpu") == ()
    assert found.find_differences("2.12.0", "cuda NVIDIA H100") == (
        "the profile of 2026-11-28 was measured with torch 2.11.0, here it is 2.12.0",
        "the profile of 2026-11-28 was measured with device cpu, here it is cuda NVIDIA H100",
    )
