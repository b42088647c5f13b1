"""Machines from files and from SLURM, and which rank goes where."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from hspmd_compiler.cluster import slurm
from hspmd_compiler.cluster.check import check_cluster
from hspmd_compiler.cluster.cluster import ClusterSpec, DeviceSpec, LinkBetween, NodeSlot, NodeSpec
from hspmd_compiler.cluster.form import cluster_from
from hspmd_compiler.cluster.hostfile import read_hostfile
from hspmd_compiler.cluster.launch_plan import Launcher, MeetingPoint, bind, commands
from hspmd_compiler.cluster.link import LinkKind, LinkSpec
from hspmd_compiler.cluster.read import read_cluster, write_cluster
from hspmd_compiler.cluster.written import cluster_form
from hspmd_compiler.errors import ClusterError
from tests.docs.page_blocks import ROOT, blocks

Expect = Callable[[str, str], None]

H100, H20 = "cuda NVIDIA H100", "cuda NVIDIA H20"
MEETING = MeetingPoint("a", 29500)
WHOLE = ClusterSpec(
    nodes=(
        NodeSpec("a", (DeviceSpec(H100, None, 80 << 30, 9.9e14),) * 8, LinkSpec(4.5e11, 2e-6)),
        NodeSpec("b", (*(DeviceSpec(H20),) * 4, DeviceSpec("cpu"))),
        NodeSpec("c", (DeviceSpec(),)),
    ),
    link=LinkSpec(2.5e10, 1e-5),
    links=(LinkBetween(("a", "c"), LinkSpec(1e9)),),
)

BAD_HOSTS = """
# nodes of the small rack
a slots=0
a slots=2 kind=gpu
b slot=3
c slots=4 slots=5
slots=4
d slots=two
"""
BAD_CLUSTER = {
    "version": 2,
    "node": [],
    "nodes": [
        {"address": "a", "devices": [{"count": 0}, {"ids": "0-1", "count": 3}, {"knd": "cpu"}]},
        {"address": 7, "devices": {}},
        {"address": "c", "devices": [{"memory": "80G", "flops": "fast"}], "link": {"latency": 0}},
    ],
    "links": [{"between": ["a"], "bandwidth": 1}],
}


def nodes(*counts: int, kind: str | None = None) -> ClusterSpec:
    """Nodes a, b, ... with so many devices."""
    named = zip("abcdef", counts, strict=False)
    return ClusterSpec(tuple(NodeSpec(name, (DeviceSpec(kind),) * count) for name, count in named))


def numbered(*ids: tuple[int, ...], kind: str = H100) -> ClusterSpec:
    """Nodes a, b, ... whose devices have these ids."""
    named = zip("abcdef", ids, strict=False)
    return ClusterSpec(
        tuple(NodeSpec(name, tuple(DeviceSpec(kind, one) for one in held)) for name, held in named)
    )


def ranks(cluster: ClusterSpec, devices: list[int], kind: str = H100) -> dict[str, tuple[int, ...]]:
    shares = bind(devices, [kind] * len(devices), cluster)
    return {share.address: share.ranks for share in shares}


def texts(cluster: ClusterSpec, devices: list[int], launcher: Launcher, kind: str = H100) -> str:
    shares = bind(devices, [kind] * len(devices), cluster)
    made = commands(shares, launcher, MEETING, ["/art", "--text", "my file", "--steps", "2"])
    return "\n".join(line for command in made for line in (command.title, command.text))


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_cluster_reads_back_alike(tmp_path: Path, suffix: str) -> None:
    check_cluster(WHOLE)
    path = tmp_path / f"cluster.{suffix}"
    for cluster in (WHOLE, numbered((0, 1, 5), (2,))):
        write_cluster(cluster, path)
        assert read_cluster(path) == cluster
        assert cluster_from(cluster_form(cluster)) == cluster


def test_equal_devices_are_one_entry() -> None:
    assert [len(node["devices"]) for node in json.loads(json.dumps(cluster_form(WHOLE)))["nodes"]] == [
        1,
        2,
        1,
    ]


def test_ids_and_counts_of_the_short_form() -> None:
    cluster = cluster_from({"nodes": [{"address": "a", "devices": [{"ids": "0-2,7", "kind": H20}]}]})
    assert cluster == numbered((0, 1, 2, 7), kind=H20)
    assert cluster_from({"nodes": [{"address": "a", "devices": [{"count": 3}]}]}) == nodes(3)


def test_links() -> None:
    assert WHOLE.path(NodeSlot(0, 0), NodeSlot(0, 1)) == LinkSpec(4.5e11, 2e-6)
    assert WHOLE.path(NodeSlot(0, 0), NodeSlot(1, 0)) == LinkSpec(2.5e10, 1e-5)
    assert WHOLE.path(NodeSlot(2, 0), NodeSlot(0, 0)) == LinkSpec(1e9)
    assert WHOLE.path(NodeSlot(1, 0), NodeSlot(1, 1)) is None


def test_a_hostfile(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(f'a slots=2\n\n# spare: x slots=9\nb   slots=3 kind="{H20}" # new\n')
    assert read_cluster(path) == ClusterSpec((*nodes(2).nodes, NodeSpec("b", (DeviceSpec(H20),) * 3)))


def test_every_bad_line_is_told(expect: Expect) -> None:
    with pytest.raises(ClusterError) as caught:
        read_hostfile(BAD_HOSTS, "hosts")
    expect("cluster/hostfile", str(caught.value))
    with pytest.raises(ClusterError, match="empty"):
        read_hostfile("# none\n")


def test_every_bad_value_is_told(expect: Expect) -> None:
    with pytest.raises(ClusterError) as caught:
        cluster_from(BAD_CLUSTER, "cluster.json")
    expect("cluster/types", str(caught.value))


def test_every_broken_rule_is_told(expect: Expect) -> None:
    broken = ClusterSpec(
        nodes=(
            NodeSpec("a", (DeviceSpec("cpu", 0), DeviceSpec("gpu", 1), *(DeviceSpec("cuda", 2),) * 3)),
            NodeSpec("a b", (DeviceSpec(memory=0, flops=-1.0, id=-1), DeviceSpec())),
            NodeSpec("a", (), LinkSpec(0, -1)),
        ),
        link=LinkSpec(float("inf")),
        links=(LinkBetween(("a", "z"), LinkSpec(1)),),
    )
    with pytest.raises(ClusterError) as caught:
        check_cluster(broken)
    expect("cluster/rules", str(caught.value))
    with pytest.raises(ClusterError, match="nodes empty: a cluster has at least one node"):
        check_cluster(ClusterSpec(()))


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("c.json", '{"nodes": [', "malformed JSON"),
        ("c.yaml", "nodes: [", "malformed YAML"),
        ("c.json", '{"nodes": [], "nodes": []}', "nodes stands 2 times"),
        ("hosts", "\xff", "isn't a text"),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, content: str, text: str) -> None:
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(ClusterError, match=text):
        read_cluster(tmp_path / name)
    with pytest.raises(ClusterError, match="can't read the machines"):
        read_cluster(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login", ["login"]),
        ("gpu[01-03,7],login-1", ["gpu01", "gpu02", "gpu03", "gpu7", "login-1"]),
        ("gpu[9-11]", ["gpu9", "gpu10", "gpu11"]),
        ("r[1-2]n[0,3]-ib", ["r1n0-ib", "r1n3-ib", "r2n0-ib", "r2n3-ib"]),
    ],
)
def test_slurm_names(text: str, names: list[str]) -> None:
    assert slurm.expand_nodes(text) == names


@pytest.mark.parametrize("text", ["", "gpu[3-1]", "gpu[1", "gpu[a-b]", "a,,b", "gpu[]"])
def test_slurm_names_that_are_none(text: str) -> None:
    with pytest.raises(ClusterError, match="SLURM_JOB_NODELIST"):
        slurm.expand_nodes(text)


def test_slurm_slots() -> None:
    job = {"SLURM_JOB_NODELIST": "a,b,c", "SLURM_TASKS_PER_NODE": "2(x2),1", "SLURM_NODEID": "1"}
    assert slurm.job_nodes(job) == nodes(2, 2, 1)
    assert slurm.job_nodes(job | {"SLURM_GPUS_PER_NODE": "h100:4"}) == nodes(4, 4, 4)
    assert slurm.own_address(job) == "b"
    for wrong in ("", "2", "2(x4)"):
        with pytest.raises(ClusterError, match="how many ranks"):
            slurm.job_nodes(job | {"SLURM_TASKS_PER_NODE": wrong})
    with pytest.raises(ClusterError, match="which node this is"):
        slurm.own_address(job | {"SLURM_NODEID": "3"})


def test_ranks_fill_nodes_in_order() -> None:
    assert ranks(nodes(2, 3, 4), [0, 1, 2, 3, 9, 12]) == {"a": (0, 1), "b": (2, 3, 4), "c": (5,)}
    assert ranks(nodes(2, 3), [0, 1]) == {"a": (0, 1)}


def test_ids_decide_where_they_are_told() -> None:
    cluster = numbered((0, 1, 2, 3), (4, 5, 6, 7))
    assert ranks(cluster, [0, 1, 3, 4, 5, 6, 7]) == {"a": (0, 1, 2), "b": (3, 4, 5, 6)}
    assert ranks(numbered((4, 5), (0, 1)), [0, 1, 4]) == {"b": (0, 1), "a": (2,)}


@pytest.mark.parametrize(
    ("kind", "found", "serves"),
    [
        ("cpu", None, True),
        ("cuda", H20, True),
        ("cuda H20", H20, True),
        (H20, "cuda", True),
        (H20, H100, False),
        ("cpu", H100, False),
        ("cuda", "cpu", False),
        ("cuda NVIDIA H100", "cuda H100-SXM5-80GB", True),
        ("cuda NVIDIA H100 80GB HBM3", "cuda H100-SXM5-80GB", True),
        ("cuda NVIDIA H100 PCIe", "cuda H100-SXM5-80GB", False),
        ("cuda H100-SXM5-80GB", "cuda NVIDIA H100 80GB HBM3", True),
        ("cuda H100-SXM5-80GB", "cuda NVIDIA H100 PCIe", False),
        ("cuda H800-SXM5-80GB", "cuda NVIDIA H800", True),
        ("cuda GeForce RTX 3090", "cuda RTX-3090", True),
        ("cuda NVIDIA H20", "cuda NVIDIA H200", False),
        ("cuda NVIDIA L4", "cuda L40S", False),
    ],
)
def test_kinds(kind: str, found: str | None, serves: bool) -> None:
    assert DeviceSpec(found).serves(kind) is serves


def test_every_misfit_is_told(expect: Expect) -> None:
    cluster = ClusterSpec((*nodes(2, kind=H100).nodes, NodeSpec("b", (DeviceSpec("cpu"),) * 2)))
    with pytest.raises(ClusterError) as caught:
        bind(range(6), [H100, H20, H100, H100, H100, H100], cluster, "hosts")
    expect("cluster/misfit", str(caught.value))
    with pytest.raises(ClusterError) as caught:
        bind([0, 2, 3, 4], [H100] * 4, numbered((0, 1), (4,)))
    expect("cluster/unknown_ids", str(caught.value))


def test_commands(expect: Expect) -> None:
    expect("cluster/torchrun", texts(nodes(2, 3, 8), [0, 1, 2, 3, 4], Launcher.TORCHRUN))
    expect("cluster/ranks", texts(nodes(2, 3, 8), [0, 1, 2, 3, 4], Launcher.RANKS))


def test_a_device_between_is_left_out(expect: Expect) -> None:
    cluster, devices = numbered((0, 1, 2, 3), (4, 5)), [0, 2, 3, 4, 5]
    expect("cluster/left_out", texts(cluster, devices, Launcher.TORCHRUN))
    assert "VISIBLE" not in texts(numbered((0, 1, 2, 3), (4, 5), kind="cpu"), devices, Launcher.RANKS, "cpu")


def test_what_torchrun_can_not_place(expect: Expect) -> None:
    mixed = (DeviceSpec(H100, 4), DeviceSpec("cpu", 1))
    cluster = ClusterSpec((NodeSpec("c", mixed), *numbered((0, 3), (2,)).nodes))
    kinds = [H100, "cpu", H100, H100, H100]
    shares = bind(range(5), kinds, cluster)
    with pytest.raises(ClusterError) as caught:
        commands(shares, Launcher.TORCHRUN, MEETING, ["/art"])
    expect("cluster/not_torchrun", str(caught.value))
    made = commands(shares, Launcher.RANKS, MEETING, ["/art"])
    assert [command.words[4] for command in made] == ["0,3", "4,1", "2"]


def test_devices_in_another_order_are_seen_in_it() -> None:
    shares = bind([0, 1], [H100] * 2, numbered((1, 0)))
    assert [command.variables for command in commands(shares, Launcher.TORCHRUN, MEETING, ["/art"])] == [
        (("CUDA_VISIBLE_DEVICES", "1,0"),)
    ]
    made = commands(shares, Launcher.RANKS, MEETING, ["/art"])
    assert made[0].words[-1] == "1,0"
    assert "VISIBLE" not in made[0].text


def test_scripts() -> None:
    cluster = replace(nodes(2), nodes=numbered((1, 0)).nodes)
    made = commands(bind([0], [H100], cluster), Launcher.TORCHRUN, MEETING, ["/my art"])[0]
    head, title, line = made.script(takes_flags=True).splitlines()
    assert (head, title) == ("#!/bin/sh", "# a: rank 0")
    assert line.startswith("exec env CUDA_VISIBLE_DEVICES=1 torchrun --nnodes=1 ")
    assert line.endswith(""" run '/my art' "$@\"""")
    assert "$@" not in made.script(takes_flags=False)


def test_the_page_is_read() -> None:
    page = {block.language: block.text for block in blocks(ROOT / "docs" / "machines.md")}
    assert [len(node.devices) for node in read_hostfile(page["hosts"]).nodes] == [2, 3]
    cluster = cluster_from(yaml.safe_load(page["yaml"]))
    assert [len(node.devices) for node in cluster.nodes] == [4, 4]
    assert cluster.path(NodeSlot(0, 0), NodeSlot(1, 0)) == LinkSpec(4e10, 1e-5)
    assert cluster.path(NodeSlot(1, 1), NodeSlot(1, 0)) == LinkSpec(3.2e10, kind=LinkKind.PCIE)
