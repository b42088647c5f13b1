"""`hspmd estimate`: what it prints for people and for scripts, and the files that it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hspmd_compiler.artifact.write import write
from hspmd_compiler.base.pace import read_pace
from hspmd_compiler.base.trace_file import read_timeline
from hspmd_compiler.cli.main import main
from tests.cost_models.priced import MIXED, compiled

Expect = Callable[[str, str], None]

CLUSTER = """
version: 1
nodes:
- address: a
  devices:
  - {count: 2, kind: cpu, memory: 17179869184, peaks: {float32: 1.0e+12}, memory_bandwidth: 1.0e+11}
  link: {bandwidth: 5.0e+10, latency: 1.0e-06}
- address: b
  devices:
  - {count: 2, kind: cpu, memory: 4194304, peaks: {float32: 5.0e+11}, memory_bandwidth: 5.0e+10}
  link: {bandwidth: 5.0e+10, latency: 1.0e-06}
link: {bandwidth: 1.0e+09, latency: 1.0e-05}
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An artifact of four ranks in two pipelines, and a cluster of two kinds of devices."""
    monkeypatch.chdir(tmp_path)
    write("good", compiled(MIXED))
    Path("cluster.yaml").write_text(CLUSTER)
    Path("few.txt").write_text("a slots=1\n")
    Path("strategy.json").write_text(json.dumps({"pipelines": MIXED}))
    return tmp_path


def test_for_people(workplace: Path, capsys: pytest.CaptureFixture[str], expect: Expect) -> None:
    assert main(["estimate", "good", "--cluster", "cluster.yaml"]) == 0
    expect("cli/estimate", capsys.readouterr().out)


def test_for_scripts_and_files(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--trace", "trace.json", "--html", "page.html", "--pace-out", "pace.json"]
    assert main(["estimate", "good", "--cluster", "cluster.yaml", "--json", *files]) == 0
    said = json.loads(capsys.readouterr().out)
    facts = {row["fact"]: row["value"] for row in said["step"]}
    assert [row["rank"] for row in said["ranks"]] == [0, 1, 2, 3]
    assert {"peak", "capacity", "fits", "kept", "platform"} < said["memory"][0].keys()
    timeline = read_timeline(Path("trace.json"), "estimated")
    assert timeline.end_s == pytest.approx(facts["seconds"], rel=1e-3)
    assert "<html" in Path("page.html").read_text()
    assert set(read_pace(Path("pace.json")).least_s) == {0, 1, 2, 3}


def test_a_model_is_compiled_for_the_cluster(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same step as of its artifact."""
    assert main(["estimate", "good", "--cluster", "cluster.yaml"]) == 0
    artifact = capsys.readouterr().out
    model = ["--model", "llama-tiny", "--strategy", "strategy.json"]
    assert main(["estimate", *model, "--cluster", "cluster.yaml"]) == 0
    assert capsys.readouterr().out == artifact


def test_a_hostfile_has_no_figures(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("hosts.txt").write_text("a slots=4\n")
    assert main(["estimate", "good", "--cluster", "hosts.txt"]) == 2
    told = capsys.readouterr().err
    assert "lacks figures" in told
    assert "memory of cpu" in told
    assert main(["estimate", "good", "--cluster", "few.txt"]) == 2
    assert "no slot is left" in capsys.readouterr().err


def test_devices_of_the_catalogue(
    workplace: Path, capsys: pytest.CaptureFixture[str], expect: Expect
) -> None:
    """An artifact for cpu on named devices, whole by the catalogue; uncertain figures and unknown devices."""
    nodes = ["--node", "2xA100-80", "--node", "2xH20"]
    assert main(["cluster", "new", *nodes, "--network", "100Gbit", "-o", "named.yaml"]) == 0
    capsys.readouterr()
    assert main(["estimate", "good", "--cluster", "named.yaml"]) == 0
    expect("cli/estimate_catalogue", capsys.readouterr().out)
    devices = "[{count: 2, kind: cuda A999}, {count: 2, kind: cuda H20}]"
    Path("unknown.yaml").write_text(f"version: 1\nnodes:\n- address: a\n  devices: {devices}\n")
    assert main(["estimate", "good", "--cluster", "unknown.yaml"]) == 2
    expect("estimate/unknown_device", capsys.readouterr().err)
