"""`hspmd plan`: what it draws for people, what it says to scripts, and the strategy that it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hspmd_compiler.cli.main import main
from hspmd_compiler.strategy.formats.read import read_strategy

Expect = Callable[[str, str], None]

CLUSTER = """
version: 1
nodes:
- address: a
  devices:
  - {count: 2, kind: cpu, memory: 16GiB, peaks: {float32: 4GFLOP/s}, memory_bandwidth: 4GB/s}
  link: {bandwidth: 50GB/s, latency: 1us}
- address: b
  devices:
  - {count: 2, kind: cpu, memory: 8GiB, peaks: {float32: 1GFLOP/s}, memory_bandwidth: 1GB/s}
  link: {bandwidth: 50GB/s, latency: 1us}
link: {bandwidth: 1GB/s, latency: 10us}
"""
PLAN = ["plan", "mlp", "--cluster", "cluster.yaml", "--global-batch", "400"]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a cluster of two kinds of devices."""
    monkeypatch.chdir(tmp_path)
    Path("cluster.yaml").write_text(CLUSTER)
    return tmp_path


def test_for_people(workplace: Path, capsys: pytest.CaptureFixture[str], expect: Expect) -> None:
    """And the file that it writes is compiled and proved."""
    assert main([*PLAN, "-o", "s.yaml"]) == 0
    expect("cli/plan", capsys.readouterr().out)
    expect("cli/plan_strategy", Path("s.yaml").read_text())
    assert main(["compile", "mlp", "--strategy", "s.yaml", "--cluster", "cluster.yaml", "-o", "out"]) == 0
    assert main(["verify", "out", "--values"]) == 0


def test_for_scripts(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--json", "--method", "program", "-o", "s.json"]) == 0
    said = json.loads(capsys.readouterr().out)
    facts = {row["fact"]: row["value"] for row in said["plan"]}
    assert facts["lower bound"] < facts["step, predicted"]
    assert [row["rank"] for row in said["memory"]] == [0, 1, 2, 3]
    names = [row["strategy"] for row in said["candidates"]]
    assert {"DP-EV", "DP-CP", "TP 2 x DP 2"} <= set(names)
    steps = [row["step"] for row in said["candidates"] if row["step"] != "refused"]
    assert steps[1:] == sorted(steps[1:])  # the plan is the first of those that prices can't tell apart
    assert read_strategy(Path("s.json")).name == names[0]


def test_a_name_that_is_unknown_costs_no_plan(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--json", "-o", "s.json", "--explain", "net.0.wieght", "--explain", "net.0.weight"]
    assert main([*PLAN, *flags]) == 2
    said = capsys.readouterr()
    assert "the plan knows no 'net.0.wieght'" in said.err
    content = json.loads(said.out)
    assert [row["taken"] for row in content["explain net.0.weight"]].count("chosen") == 1
    assert all(isinstance(row["gradient, as planned"], float) for row in content["parameters"])
    assert Path("s.json").exists()


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--global-batch", "0"], "no_samples"),
        (["--cost", "hap"], "cost_of_another_space"),
        (["--arg", "hidden=none", "-o", "nowhere/s.yaml"], "no_folder"),
    ],
)
def test_mistakes_end_with_2(
    workplace: Path, capsys: pytest.CaptureFixture[str], expect: Expect, flags: list[str], name: str
) -> None:
    assert main(["plan", "mlp", "--cluster", "cluster.yaml", *flags]) == 2
    expect(f"plan/{name}", capsys.readouterr().err.rstrip("\n"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("link: {bandwidth: 1GB/s, latency: 10us}\n", "", "link a - b"),
        ("memory: 8GiB, ", "", "memory of cpu"),
        ("peaks: {float32: 1GFLOP/s}, ", "", "peaks of cpu"),
        ("{float32: 1GFLOP/s}", "{float32: 0GFLOP/s}", "nodes[1].devices"),
    ],
    ids=["link", "memory", "peaks", "speed_0"],
)
def test_what_a_cluster_lacks_is_told_before_anything_is_loaded(
    workplace: Path, old: str, new: str, said: str
) -> None:
    """Neither PyTorch nor the model, which takes seconds."""
    assert old in CLUSTER
    Path("cluster.yaml").write_text(CLUSTER.replace(old, new))
    code = (
        "import sys\n"
        "from hspmd_compiler.cli.main import main\n"
        f"code = main({PLAN!r})\n"
        "print(code, 'torch' in sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stdout == "2 False\n"
    assert said in ended.stderr
