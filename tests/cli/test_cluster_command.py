"""`hspmd cluster`: what it writes from short names, what it draws, and that `hspmd launch` reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hspmd_compiler.artifact.store import load
from hspmd_compiler.artifact.write import write
from hspmd_compiler.cli.main import main
from hspmd_compiler.cluster.cluster import ClusterSpec, LinkBetween, NodeSlot
from hspmd_compiler.cluster.link import LinkKind, LinkSpec
from hspmd_compiler.cluster.new import NewCluster, new_cluster
from hspmd_compiler.cluster.read import read_cluster
from hspmd_compiler.options import OptimizerConfig
from tests.runtime import hand_made

Expect = Callable[[str, str], None]

STAGES = [{"devices": [0, 1], "layers": 1}, {"devices": [2], "layers": 1}]
THREE = {"pipelines": [{"stages": STAGES, "micro_batches": [2, 3]}]}
TWO = ["--node", "2xA100-80", "--node", "4xRTX3090", "--nic", "25Gbit"]
TWO += ["--price", "A100=3.5", "--price", "0.4"]
MIXED = ["--node", "gpu[01-03]=8xH20,nic=400Gbit,zone=eu,price=30,cores=96", "--node", "2xV100,link=nvlink"]
MIXED += ["--node", "2*2xRTX3090,link=nvlink", "--network", "10Gbit@50us"]
MEASURED = """
calibration:
  {date: "2026-11-28", torch: 2.11.0, device: cpu, threads: 1, instruction_s: 1.0e-5, platform_bytes: 100,
   operators: {"matmul:float32": {fixed_s: 1.0e-6, per_flop_s: 2.0e-11, spread: 0.07}}, exchange: {},
   collectives: {}, update: {fixed_s: 1.0e-6}, sends: async}
"""


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "SLURM_JOB_NODELIST", "SLURM_NODEID"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def made(*nodes: str, **settings: str) -> ClusterSpec:
    return new_cluster(NewCluster(nodes, settings)).cluster


def test_it_writes_what_it_is_told(capsys: pytest.CaptureFixture[str], expect: Expect) -> None:
    assert main(["cluster", "new", *TWO, "-o", "c.yaml"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    expect("cli/cluster_new", Path("c.yaml").read_text() + told.err)
    assert main(["cluster", "new", *TWO, "-o", "c.json"]) == 0
    assert read_cluster(Path("c.json")) == read_cluster(Path("c.yaml"))
    assert main(["cluster", "new", *TWO]) == 0
    assert capsys.readouterr().out == Path("c.yaml").read_text()


def test_it_draws(capsys: pytest.CaptureFixture[str], expect: Expect) -> None:
    assert main(["cluster", "new", *MIXED, "-o", "c.yaml"]) == 0
    capsys.readouterr()
    assert main(["cluster", "show", "c.yaml"]) == 0
    expect("cli/cluster_show", capsys.readouterr().out)


def test_it_draws_what_was_measured_and_what_is_not_told(
    capsys: pytest.CaptureFixture[str], expect: Expect
) -> None:
    Path("hosts.yaml").write_text(
        "nodes:\n- {address: a, devices: [{ids: '0-1,5', kind: cpu, pace: 4}], "
        "link: {bandwidth: 1GB/s, curve: [[1, 1.0e-6], [100, 2.0e-6]]}}\n" + MEASURED
    )
    Path("hosts").write_text("a slots=2\nb slots=1\n")
    assert main(["cluster", "show", "hosts.yaml"]) == main(["cluster", "show", "hosts"]) == 0
    expect("cli/cluster_show_bare", capsys.readouterr().out)


def test_many_kinds_of_nodes_have_a_list_of_links(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [part for count in range(1, 9) for part in ("--node", f"{count}xA100-40")]
    assert main(["cluster", "new", *nodes, "--nic", "25Gbit", "-o", "c.yaml"]) == 0
    assert main(["cluster", "show", "c.yaml"]) == 0
    assert "node-0 and node-1, and 27 more pairs" in capsys.readouterr().out


def test_scripts_get_figures_with_their_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "new", *TWO, "-o", "c.yaml"]) == 0
    capsys.readouterr()
    assert main(["cluster", "show", "c.yaml", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert read_cluster(told["cluster"]) == read_cluster(Path("c.yaml"))
    assert (told["devices"], told["price_per_hour"]) == (6, 8.6)
    first = {"device": "cuda A100-SXM4-80GB", "figure": "memory", "value": 80 << 30, "status": "datasheet"}
    assert first.items() <= told["figures"][0].items()
    assert told["links"] == [
        {"between": ["node-0", "node-1"], "kind": "network", "bandwidth": 3.125e9, "latency": 1e-5}
    ]


@pytest.mark.parametrize(
    ("nodes", "addresses", "devices"),
    [
        (["2xA100"], ["node-0"], [2]),
        (["3*8xH100", "1xT4"], ["node-0", "node-1", "node-2", "node-3"], [8, 8, 8, 1]),
        (["3*(8xH100)"], ["node-0", "node-1", "node-2"], [8, 8, 8]),
        (["gpu[01-02,7]=4xL4"], ["gpu01", "gpu02", "gpu7"], [4, 4, 4]),
        (["n[1,3]-[0-1]=2xL4"], ["n1-0", "n1-1", "n3-0", "n3-1"], [2, 2, 2, 2]),
        (["x[1-2]=2*2xL4"], ["x1", "x2"], [2, 2]),
        (["10.0.0.1=2xA100+1xT4+3xcpu"], ["10.0.0.1"], [6]),
        (["x=1xT4", "1xT4"], ["x", "node-1"], [1, 1]),
    ],
)
def test_nodes(nodes: list[str], addresses: list[str], devices: list[int]) -> None:
    cluster = made(*nodes)
    assert [node.address for node in cluster.nodes] == addresses
    assert [len(node.devices) for node in cluster.nodes] == devices


def test_a_digit_that_is_no_number_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "new", "--node", "2²2xA100", "--node", "²xA100"]) == 2
    assert "'2²2xA100': not understood" in capsys.readouterr().err


def test_a_node_tells_its_own_before_all_others() -> None:
    cluster = made("1xT4,nic=1Gbit@1ms,zone=b,cores=4,price=2", "1xT4", nic="8Gbit", zone="a b", cores="9")
    first, second = cluster.nodes
    assert first.nic == LinkSpec(1.25e8, 1e-3, LinkKind.NETWORK)
    assert (first.zone, first.cores, first.price) == ("b", 4, 2.0)
    assert second.nic == LinkSpec(1e9, 1e-5, LinkKind.NETWORK)
    assert (second.zone, second.cores, second.price) == ("a b", 9, None)


def test_bridges_join_pairs_of_their_node() -> None:
    cluster = made("1xT4", "b=3x3090,link=nvlink")
    bridge = LinkSpec(5.625e10, 2e-6, LinkKind.NVLINK)
    assert cluster.links == (LinkBetween(("b/0", "b/1"), bridge),)
    assert cluster.path(NodeSlot(1, 1), NodeSlot(1, 0)) == bridge
    assert cluster.path(NodeSlot(1, 1), NodeSlot(1, 2)) == cluster.nodes[1].link


def test_prices_by_kind() -> None:
    asked = NewCluster(["1xA100-40+1xA100-80+1xT4+1xcpu"], {}, ["A100=3", "cpu=0", "1"])
    cluster = new_cluster(asked).cluster
    assert [device.price_per_hour for device in cluster.nodes[0].devices] == [3, 3, 1, 0]


def test_launch_reads_it(workplace: Path, capsys: pytest.CaptureFixture[str], expect: Expect) -> None:
    hand_made.save(workplace / "made", OptimizerConfig())
    write("made", replace(load("made"), strategy=THREE))
    assert main(["cluster", "new", "--node", "a=1xcpu", "--node", "b=3xcpu", "-o", "c.yaml"]) == 0
    assert main(["launch", "made", "--hosts", "c.yaml", "--run", "--text", "t", "--steps", "1"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("# a: rank 0\n") and "# b: ranks 1-2\n" in told
    assert main(["cluster", "new", "--node", "a=2xA100,link=pcie", "--node", "b=1xT4", "-o", "c.yaml"]) == 0
    capsys.readouterr()
    assert main(["launch", "made", "--hosts", "c.yaml"]) == 2
    expect("cli/launch_other_machines", capsys.readouterr().err)
