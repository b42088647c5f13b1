"""The built-in catalogue: its figures, the names that find a device, and what is said of unsure ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from hspmd_compiler.base.devices import TORCH_NAMES
from hspmd_compiler.base.quantities import figure_text, memory_text
from hspmd_compiler.cluster.catalogue import FILE, CatalogueDevice, FigureStatus, catalogue
from hspmd_compiler.cluster.check import check_cluster
from hspmd_compiler.cluster.cluster import ClusterSpec, DeviceSpec, NodeSlot, NodeSpec
from hspmd_compiler.cluster.completed import completed_cluster, unknown_text
from hspmd_compiler.cluster.device_names import known_text, named_device
from hspmd_compiler.cluster.figures import device_figures, uncertain
from hspmd_compiler.cluster.link import LinkKind, LinkSpec
from hspmd_compiler.cluster.node_link import node_link

Expect = Callable[[str, str], None]


def device(name: str) -> CatalogueDevice:
    found = named_device(name)
    assert found is not None, name
    return found.device


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_each_device_is_a_whole_one(entry: CatalogueDevice) -> None:
    check_cluster(ClusterSpec((NodeSpec("a", (entry.spec,) * 2, entry.own_link, entry.pcie_link),)))
    assert device(entry.name) is device(entry.kind) is entry
    assert named_device(entry.name.replace("-", "_").lower()).note == ""
    assert entry.spec.peak("float32") and entry.spec.peak("float16") and entry.spec.peak("bfloat16")
    dense = entry.spec.peaks["float16"] / entry.spec.peaks["float32"]
    assert 1.9 < dense < 23  # a rate with sparsity would be beyond


def test_figures_are_dense_and_of_one_direction() -> None:
    """Vendors state peaks with sparsity, links of both directions, and boards of two devices."""
    peaks = {"A100": 312, "H100": 989.4, "H100-PCIe": 756, "A10": 125, "L4": 121, "3090": 71.2, "MI250": 181}
    assert {name: round(device(name).spec.peaks["bfloat16"] / 1e12, 1) for name in peaks} == peaks
    links = {"A100": 300, "A800": 200, "H100": 450, "V100": 150, "3090": 56.25, "MI250": 50}
    found = {name: own.bandwidth / 1e9 for name in links if (own := device(name).own_link) is not None}
    assert found == links
    assert device("A100").pcie_link.bandwidth == 32e9
    emulating = [entry.name for entry in catalogue() if entry.spec.emulates("bfloat16")]
    assert {name.partition("-")[0] for name in emulating} == {"P100", "V100", "T4", "TITAN", "RTX"}
    assert "RTX-3090" not in emulating


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("A100-80", "A100-SXM4-80GB"),
        ("a100-80gb", "A100-SXM4-80GB"),
        ("A100 80 GB", "A100-SXM4-80GB"),
        ("A100", "A100-SXM4-80GB"),
        ("A100-40", "A100-SXM4-40GB"),
        ("cuda NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("3090", "RTX-3090"),
        ("RTX3090", "RTX-3090"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX-2080Ti"),
        ("V100-32", "V100-SXM2-32GB"),
        ("Tesla V100-PCIE-16GB", "V100-PCIe-16GB"),
        ("H100", "H100-SXM5-80GB"),
        ("h100sxm", "H100-SXM5-80GB"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("H200", "H200-SXM-141GB"),
        ("titan rtx", "TITAN-RTX"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_names(name: str, found: str) -> None:
    assert device(name).name == found


@pytest.mark.parametrize(
    "name",
    ["", "cuda", "RTX", "80GB", "3080", "2080", "A10G", "MI250X", "A100-64", "T4-PCIe", "H20 SXM 80GB"],
)
def test_names_that_mean_no_device(name: str) -> None:
    """A chip that sounds alike is another one."""
    assert named_device(name) is None


def test_a_name_that_could_be_several_says_so(expect: Expect) -> None:
    named = [
        found for name in ("A100", "A100-80", "V100", "H100", "A100-40") if (found := named_device(name))
    ]
    expect("cluster/names", "\n".join(found.note for found in named))
    assert known_text("cpu").endswith(", MI300X, cpu")
    usual = Counter(entry.name.partition("-")[0] for entry in catalogue() if entry.is_usual)
    assert set(usual.values()) == {1}


def test_figures_say_where_they_come_from() -> None:
    spec = replace(device("H20").spec, memory=80 << 30, efficiency=0.5)
    statuses = {figure.name: figure.status for figure in device_figures(spec)}
    assert statuses == {
        "memory": FigureStatus.GIVEN,
        "peak bfloat16": FigureStatus.UNCERTAIN,
        "peak float16": FigureStatus.UNCERTAIN,
        "peak float32": FigureStatus.UNCERTAIN,
        "memory bandwidth": FigureStatus.UNCERTAIN,
        "part of the peak": FigureStatus.GIVEN,
        "part of the bandwidth": FigureStatus.ASSUMED,
    }
    told = {figure.name: figure.text for figure in device_figures(DeviceSpec("cuda", flops=1e14, pace=4))}
    assert told["memory"] == told["memory bandwidth"] == "not told"
    assert (told["peak bfloat16"], told["pace"]) == ("100 TFLOP/s", "4")
    assert {figure.note for figure in device_figures(device("MI250").spec)} >= {"per GCD; board 128"}


def test_what_is_uncertain_is_said_where_it_is_used(expect: Expect) -> None:
    devices = [device(name).spec for name in ("H20", "H20", "A100", "T4", "V100")]
    told = [*uncertain(devices), "", *uncertain(devices, ["float32"]), "", *uncertain(devices[2:3])]
    expect("cluster/uncertain", "\n".join(told))


def link(*names: str, choice: str = "") -> tuple[float | None, list[tuple[int, int, float]]]:
    """GB/s between any two devices, and between pairs."""
    found = node_link([None if name == "cpu" else device(name) for name in names], choice)
    bandwidth = None if found.link is None else found.link.bandwidth / 1e9
    return bandwidth, [(low, high, pair.bandwidth / 1e9) for low, high, pair in found.pairs]


def test_links_inside_a_node() -> None:
    assert link("A100", "A100") == (300, [])
    assert link("A100", "A100", choice="pcie") == (32, [])
    assert link("A100", "A100", choice="10GB/s@1us") == (10, [])
    assert link("A100", "T4") == (16, [])
    assert link("3090", "3090", "3090") == (32, [])
    assert link("3090", "3090", "3090", choice="nvlink") == (32, [(0, 1, 56.25)])
    assert link("MI250", "MI250", "MI250", "MI250") == (50, [(0, 1, 200), (2, 3, 200)])
    assert link("A100") == link("cpu", "cpu") == (None, [])
    assert link("cpu", "cpu", choice="8Gbit") == (1, [])
    with pytest.raises(ValueError, match="RTX-4090 has no NVLink"):
        link("4090", "4090", choice="nvlink")
    assert node_link([device("4090")] * 2).notes == (
        "RTX-4090: the stock driver has no peer-to-peer: messages take the way through host memory",
    )


def test_what_a_cluster_lacks_is_in_the_catalogue(expect: Expect) -> None:
    node = NodeSpec("a", (DeviceSpec("cuda NVIDIA A100"),) * 2)
    cluster = ClusterSpec((node, replace(node, address="b")))
    found = completed_cluster(cluster, [NodeSlot(0, 0), NodeSlot(0, 1)], ["float32"])
    spec = replace(device("A100").spec, kind="cuda NVIDIA A100")
    assert found.cluster.nodes[0].devices == (spec,) * 2
    assert found.cluster.nodes[0].link == LinkSpec(3e11, 2e-6, LinkKind.NVLINK)
    assert found.cluster.nodes[1] == cluster.nodes[1]
    expect("cluster/completed", "\n".join(found.notes))


def test_what_is_told_or_unknown_stays_as_it_is() -> None:
    told = replace(device("A100").spec, memory=1 << 30, peaks={"float32": 1e12}, id=5)
    others = tuple(NodeSpec(str(kind), (DeviceSpec(kind),) * 2) for kind in ("cuda Foo", None, "cpu"))
    cluster = ClusterSpec((NodeSpec("a", (told,)), *others))
    found = completed_cluster(cluster, list(cluster.slots), ["float32"])
    assert (found.cluster, found.notes) == (cluster, ())
    devices = [cluster.device_of(slot) for slot in cluster.slots]
    text = unknown_text([*devices, DeviceSpec("cuda RTX 5090")])
    assert text.startswith("not in the catalogue: cuda Foo, cuda RTX 5090; known devices are P100-SXM2-16GB,")
    assert unknown_text([told, DeviceSpec("cpu"), DeviceSpec()]) == ""


def test_figures_for_people() -> None:
    assert [figure_text(value, "B/s") for value in (0, 5, 999.6, 2.039e12, 1e22)] == [
        "0 B/s",
        "5 B/s",
        "1 kB/s",
        "2.04 TB/s",
        "1e+04 EB/s",
    ]
    assert [figure_text(value, "s") for value in (0, 2e-6, 1.5e-9, 1e-12, 90)] == [
        "0 s",
        "2 µs",
        "1.5 ns",
        "0.001 ns",
        "90 s",
    ]
    assert [memory_text(size) for size in (0, 1023, 80 << 30, 3 << 29)] == [
        "0 B",
        "1023 B",
        "80 GiB",
        "1.5 GiB",
    ]


def test_the_file_is_data() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert set(json.loads(text)) == {"about", "devices"}
    assert Counter(entry.name for entry in catalogue()).most_common(1)[0][1] == 1


def test_torch_names_each_device() -> None:
    """And drivers' names mean the device in the catalogue, too."""
    assert list(TORCH_NAMES) == [device.name for device in catalogue()]
    assert {name: named_device(told) for name, told in TORCH_NAMES.items() if _found(told) != name} == {}


def _found(told: str) -> str:
    named = named_device(told)
    return "" if named is None else named.device.name
