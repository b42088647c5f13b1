"""`hspmd compile`, `inspect` and `estimate` of several strategies, as a user calls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hspmd_compiler.cli.main import main
from tests.bundles.samples import STRATEGIES

Expect = Callable[[str, str], None]
DEVICES = "[{count: 2, kind: cpu, memory: 1GB, peaks: {float32: 1e12}, memory_bandwidth: 1e11}]"
CLUSTER = f"""
nodes:
- {{address: a, devices: {DEVICES}, link: {{bandwidth: 1e9, latency: 0}}}}
- {{address: b, devices: {DEVICES}, link: {{bandwidth: 1e9, latency: 0}}}}
link: {{bandwidth: 1e8, latency: 0}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Strategies as files, and a bundle of them in `out`."""
    folder = tmp_path_factory.mktemp("commands")
    for name, form in STRATEGIES.items():
        (folder / f"{name}.yaml").write_text(json.dumps(form).replace("5", "3"))
    (folder / "cluster.yaml").write_text(CLUSTER)
    given = [text for name in STRATEGIES for text in ("--strategy", str(folder / f"{name}.yaml"))]
    cluster = ["--cluster", str(folder / "cluster.yaml")]
    assert main(["compile", "mlp", *given, *cluster, "--home", "wide", "-o", str(folder / "out")]) == 0
    return folder


@pytest.fixture
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def test_what_a_compile_shows_is_what_was_written(
    inside: Path, capsys: pytest.CaptureFixture[str], expect: Expect
) -> None:
    given = ["--strategy", "narrow.yaml", "--strategy", "deep.yaml", "--switch", "narrow:deep"]
    assert main(["compile", "mlp", *given, "-o", "two", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert main(["inspect", "two", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == said
    assert [row["switch"] for row in said["switches"]] == ["narrow:deep"]
    assert main(["inspect", "out"]) == 0
    expect("inspect/bundle", capsys.readouterr().out)


def test_a_switch_is_shown(inside: Path, capsys: pytest.CaptureFixture[str], expect: Expect) -> None:
    assert main(["inspect", "out", "--switch", "narrow:wide"]) == 0
    shown = capsys.readouterr().out
    assert main(["inspect", "out", "--switch", "wide:deep", "--scope", "params"]) == 0
    expect("inspect/bundle_switch", shown + "\n" + capsys.readouterr().out)


def test_a_switch_for_scripts(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What moves by kind and by rank adds up to what moves by link."""
    assert main(["inspect", "out", "--switch", "deep:wide", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    facts = {row["fact"]: row["value"] for row in said["switch"]}
    moved = facts["intra-node bytes"] + facts["inter-node bytes"]
    assert moved > 0 and isinstance(facts["estimated seconds"], float)
    assert facts["inter-node bytes"] == facts["inter-node bound bytes"]
    assert sum(row["moved bytes"] for row in said["kinds"]) == moved
    assert sum(row["local bytes"] for row in said["kinds"]) == facts["local bytes"]
    for column in ("sent bytes", "received bytes"):
        assert sum(row[column] for row in said["ranks"]) == moved
    assert max(row["sent bytes"] for row in said["ranks"]) == facts["busiest sender bytes"]
    assert sum(row["local bytes"] for row in said["ranks"]) == facts["local bytes"]
    assert [row["rank after"] for row in said["ranks"]] == [0, "idle", "idle", 1]


def test_a_strategy_of_it_is_an_artifact(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "out/deep", "--json"]) == 0
    folder = capsys.readouterr().out
    assert main(["inspect", "out", "--strategy-name", "deep", "--json"]) == 0
    assert capsys.readouterr().out == folder
    assert main(["inspect", "out", "--strategy-name", "deep", "--rank", "1"]) == 0
    assert "device 2" in capsys.readouterr().out
    assert main(["estimate", "out", "--strategy-name", "deep", "--cluster", "cluster.yaml", "--json"]) == 0
    named = capsys.readouterr().out
    assert main(["estimate", "out/deep", "--cluster", "cluster.yaml", "--json"]) == 0
    assert capsys.readouterr().out == named


def test_every_device_of_any_strategy_gets_a_process(
    inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("hosts").write_text("first slots=3\nsecond slots=1\n")
    assert main(["launch", "out", "--hosts", "hosts", "--launcher", "ranks"]) == 0
    said = capsys.readouterr().out
    assert "--ranks 0-2" in said and "--ranks 3" in said


def test_arguments_of_one_strategy(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        "--strategy",
        "narrow.yaml",
        "--strategy",
        "deep.yaml",
        "--arg",
        "layers=4",
        "--arg",
        "hidden=16",
    ]
    small = [*given, "--arg", "heads=2", "--arg", "ffn=16", "--arg", "kv_heads=2", "--seq-len", "8"]
    long = ["--strategy-arg", "deep:seq=12"]
    assert main(["compile", "llama-tiny", *small, *long, "-o", "lengths", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert ["[4, 8]" in said["strategies"][0]["inputs"], "[4, 12]" in said["strategies"][1]["inputs"]] == [
        True
    ] * 2


MISTAKES: dict[str, list[str]] = {
    "an unknown strategy": ["inspect", "out", "--strategy-name", "third"],
    "an unknown switch": ["inspect", "out", "--switch", "narrow:third"],
    "no switch": ["inspect", "out", "--switch", "narrow"],
    "a switch of one": ["inspect", "out", "--switch", "narrow:deep", "--strategy-name", "deep"],
    "no plan": ["inspect", "out", "--switch", "narrow:deep", "--scope", "grads"],
    "a scope of nothing": ["inspect", "out", "--scope", "params"],
    "a page of which": ["inspect", "out", "--comm"],
    "a price of which": ["estimate", "out", "--cluster", "cluster.yaml"],
    "a name without a folder": [
        *("estimate", "--model", "mlp", "--strategy", "deep.yaml"),
        *("--cluster", "cluster.yaml", "--strategy-name", "deep"),
    ],
    "a name for one": ["verify", "out/deep", "--strategy-name", "deep"],
    "data for which": ["verify", "out", "--values", "--data", "module:factory"],
    "one rank of several": [
        *("compile", "mlp", "--strategy", "deep.yaml", "--strategy", "wide.yaml", "--rank", "1", "-o", "new")
    ],
    "the same name twice": [
        *("compile", "mlp", "--strategy", "deep.yaml", "--strategy", "deep.yaml", "-o", "new")
    ],
    "switches": [
        *("compile", "mlp", "--strategy", "deep.yaml", "--strategy", "wide.yaml", "-o", "new"),
        *("--switch", "deep:deep,wide", "--home", "narrow"),
    ],
    "a home of none": [
        *("compile", "mlp", "--strategy", "deep.yaml", "--strategy", "wide.yaml", "-o", "new"),
        *("--home", "low"),
    ],
    "a home of one": ["compile", "mlp", "--strategy", "deep.yaml", "-o", "new", "--home", "wide"],
    "arguments": [
        *("compile", "mlp", "--strategy", "deep.yaml", "--strategy", "wide.yaml", "-o", "new"),
        *("--strategy-arg", "layers=2", "--strategy-arg", "narrow:layers=2"),
        *("--strategy-arg", "deep:layers=2", "--strategy-arg", "deep:layers=3"),
    ],
    "other models": [
        *("compile", "mlp", "--strategy", "deep.yaml", "--strategy", "wide.yaml", "-o", "new"),
        *("--strategy-arg", "deep:hidden=32"),
    ],
}


def test_mistakes_are_told(inside: Path, capsys: pytest.CaptureFixture[str], expect: Expect) -> None:
    told = []
    for name, arguments in MISTAKES.items():
        assert main(arguments) == 2, name
        told.append(f"{name}\n{capsys.readouterr().err}")
    expect("cli/bundle_commands", "\n".join(told))
    assert not Path("new").exists()
