"""`hspmd compile`: files that are the same every time, parts for one rank, and nothing after a mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hspmd_compiler.artifact.store import load
from hspmd_compiler.cli.main import main
from hspmd_compiler.options import OptimizerName

STRATEGY = """
pipelines:
  - stages: [{devices: [0, 3], layers: [0, 3]}, {devices: [4], layers: [3, 4]}]
    micro_batches: [2, 1]
  - stages: [{devices: [9], layers: [0, 4]}]
    micro_batches: [2]
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(STRATEGY)
    Path("deep.yaml").write_text(STRATEGY.replace("[3, 4]", "[3, 6]").replace("[0, 4]", "[0, 6]"))
    return tmp_path


def compile_mlp(*args: str, strategy: str = "s.yaml") -> int:
    return main(["compile", "mlp", "--strategy", strategy, *args])


def contents(directory: str) -> dict[str, bytes]:
    root = Path(directory)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_twice_gives_the_same_bytes(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compile_mlp("-o", "one", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["device"] for row in said["ranks"]] == [0, 3, 4, 9]
    assert compile_mlp("-o", "deeper/two", "--dump", "dump") == 0
    assert contents("one") == contents("deeper/two")
    assert str(workplace).encode() not in b"".join(contents("one").values())
    assert sorted(path.name for path in Path("dump").iterdir())[0] == "00-trace.txt"


def test_one_rank(workplace: Path) -> None:
    flags = ["--optimizer", "sgd", "--lr", "0.5", "--momentum", "0.9"]
    assert compile_mlp("-o", "whole", *flags) == 0
    assert compile_mlp("-o", "part", "--rank", "2", *flags) == 0
    whole, part = load("whole", 2), load("part")
    assert part.program == whole.program
    assert (part.manifest.rank, part.manifest.optimizer.name) == (2, OptimizerName.SGD)
    assert part.manifest.model_fingerprint == whole.manifest.model_fingerprint
    assert set(contents("part")) < set(contents("whole"))
    assert len([path for path in contents("part") if path.startswith(("ranks/", "classes/"))]) == 2


@pytest.mark.parametrize("flags", [(), ("--rank", "2"), ("--optimizer", "adamw", "--weight-decay", "0.1")])
def test_what_a_compile_shows_is_what_was_written(
    flags: tuple[str, ...],
    workplace: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as without_reading:
        without_reading.setattr("hspmd_compiler.artifact.store._loaded", None)
        assert compile_mlp("-o", "out", "--json", *flags) == 0
    said = json.loads(capsys.readouterr().out)
    assert said.pop("traced")
    assert main(["inspect", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == said


def test_mistakes_write_nothing(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path.name for path in workplace.iterdir())
    assert compile_mlp("-o", "out", strategy="deep.yaml") == 2
    assert "the model has 4, every pipeline runs all" in capsys.readouterr().err
    assert compile_mlp("-o", "out", "--rank", "4") == 2
    assert "no program for rank 4" in capsys.readouterr().err
    assert compile_mlp("-o", "s.yaml") == 2
    assert "is not an artifact" in capsys.readouterr().err
    assert sorted(path.name for path in workplace.iterdir()) == before
    assert Path("s.yaml").read_text() == STRATEGY
