"""Each command of examples/program_search, and searches of compile_overhead.py, at a small size."""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE, BENCHMARKS = ROOT / "examples" / "program_search", ROOT / "benchmarks"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.parametrize(("name", "experiment"), [("heterogeneous", "MIXED"), ("homogeneous", "EQUAL")])
def test_step_times(name: str, experiment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = import_module(name)
    small = ["--models", "vgg19,bert-moe", "--devices", "4,8", "--layers", "2"]
    written = ["--json", str(tmp_path / "rows.json"), "--plot", str(tmp_path / "plot.svg")]
    assert module.main(getattr(module, experiment), [*small, *written]) == 0
    out = capsys.readouterr().out
    assert "weights of norms" in out and re.search("E[12], h", out)
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [(row["setting"]["model"], len(row["setting"]["speeds"])) for row in rows] == [
        *(("vgg19", 4), ("vgg19", 8), ("bert-moe", 4), ("bert-moe", 8))
    ]
    assert all(row["tensor_cost"] <= row["cost"] <= row["dp_proportional_cost"] for row in rows)
    assert all(row["whole_cost"] <= row["rounded_tensor_cost"] * (1 + 1e-12) for row in rows)
    assert rows[1]["original_cost"] == pytest.approx(rows[1]["cost"], rel=1e-12)
    bars = ElementTree.parse(tmp_path / "plot.svg").getroot().findall(".//{*}rect/{*}title")
    assert len(bars) == 4 * 6 + 1  # one case was run by the original


def test_overhead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "plot.svg"
    assert import_module("overhead").main(["--layers", "2,4", "--plot", str(plot)]) == 0
    assert re.search(r"│ 4 +│ +0.23 │", capsys.readouterr().out)
    curves = ElementTree.parse(plot).getroot().findall("{*}polyline")
    assert [len(curve.attrib["points"].split()) for curve in curves] == [1, 2]


def test_time_is_linear_in_layers() -> None:
    """States are counted, which no other process disturbs."""
    searched = import_module("searched")
    profiles = import_module("hspmd_compiler.synthesizer.hap.profiles")
    plan = import_module("hspmd_compiler.synthesizer.hap.plan")
    machine = plan.HapMachine.of([profiles.EQUAL] * 8, profiles.PROFILES["released"])
    states = [
        plan.plan_hap(searched.traced("vit", (("layers", layers),), False)[0].graph(), machine).program.states
        for layers in (2, 4, 6)
    ]
    assert states[2] - states[1] == states[1] - states[0]


def overhead_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["compile_overhead.py", *arguments])
    result: int = import_module("compile_overhead").main()
    return result


def test_a_search_is_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    small = "--model", "vit,bert-moe", "--layers", "2", "--devices", "2,4", "--repeats", "1"
    assert overhead_of(monkeypatch, *small, "--space", "hap", "--json", str(out)) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [(row["name"], row["devices"]) for row in rows] == [
        *(("ViT", 2), ("ViT", 4), ("BERT-MoE", 2), ("BERT-MoE", 4))
    ]
    assert all(0 < row["search_s"] < 1 and row["cost"] > 0 and row["trace_s"] > 0 for row in rows)


def test_the_full_space_is_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    small = "--model", "mlp", "--layers", "3", "--devices", "4"
    assert overhead_of(monkeypatch, *small, "--space", "full", "--json", str(out)) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert [(one["groups"], one["ranks"]) for one in row["groupings"]] == [(4, 1), (2, 2), (1, 4)]
    assert row["cost"] == min(one["cost"] for one in row["groupings"]) == row["fitted_cost"]
    assert row["search_s"] > row["look_s"] > 0


def test_runs_that_are_dearer_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((EXAMPLE / "original_runs.json").read_text())
    first = content["runs"][0]
    cheaper = {**first, "final_cost_s": first["final_cost_s"] * 0.999}
    runs, out = tmp_path / "runs.json", tmp_path / "out.json"
    runs.write_text(json.dumps({"runs": [first, cheaper]}))
    assert overhead_of(monkeypatch, "--runs", str(runs), "--json", str(out)) == 1
    written = json.loads(out.read_text())
    assert written["compared"] == 2 and len(written["dearer"]) == 1
    assert "1 of 2 runs" in capsys.readouterr().out
    runs.write_text(json.dumps({"runs": [{**first, "pipelines": 2}]}))
    assert overhead_of(monkeypatch, "--runs", str(runs)) == 2
    assert "unknown key" in capsys.readouterr().err
