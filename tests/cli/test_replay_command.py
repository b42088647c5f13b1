"""`hspmd run --elastic --replay`: devices of a trace go and come back, and training ends as if none had."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hspmd_compiler.cli.main import main
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from tests.cli.test_checkpoint_command import ALL, DATA, factory
from tests.runtime.switch_cases import bundled

THREE = Strategy(
    (PipelineSpec((StageSpec((0, 1), ALL),), (2, 2)), PipelineSpec((StageSpec((2,), ALL),), (2,)))
)
TWO = Strategy((PipelineSpec((StageSpec((0,), (0, 1)), StageSpec((1,), (1, 2))), (3, 3)),))
TRACE = """
moments:
- {step: 0, present: "0-2"}
- {step: 3, present: "0-1", slow: {1: 2}}
- {step: 6, present: "0-2"}
"""
STEPS = 9

Run = Callable[..., tuple[int, list[dict[str, object]], str]]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    optimizer = OptimizerConfig(lr=1e-2, weight_decay=0.1, max_grad_norm=1.0)
    to = tmp_path_factory.mktemp("bundle") / "both"
    return bundled(to, factory, {"three": THREE, "two": TWO}, optimizer)


@pytest.fixture
def run(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """The command in this process: exit code, records, and what it says of mistakes."""
    (tmp_path / "own_data.py").write_text(DATA)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("RANK", raising=False)

    def run(*args: str, directory: Path = bundle) -> tuple[int, list[dict[str, object]], str]:
        data = ("--data", "own_data:slow", "--steps", str(STEPS), "--start", "three", "--json")
        code = main(["run", str(directory), *data, *args])
        said = capfd.readouterr()
        return code, [json.loads(line) for line in said.out.splitlines()], said.err

    yield run
    sys.modules.pop("own_data", None)


def test_devices_go_and_come_back(run: Run) -> None:
    code, whole, errors = run("--save", "whole.safetensors")
    assert code == 0, errors
    Path("trace.yaml").write_text(TRACE)
    code, told, errors = run("--elastic", "--replay", "trace.yaml", "--save", "end.safetensors")
    assert code == 0, errors
    steps, wanted = ([each for each in of if "step" in each] for of in (told, whole))
    assert [each["step"] for each in steps] == list(range(1, STEPS + 1))
    for one, two in zip(steps, wanted, strict=True):
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-12)
    changes = [each["regroup"] for each in told if "regroup" in each]
    assert [(each["lost"], each["joined"], each["strategy"]) for each in changes] == [  # type: ignore[index]
        ([2], [], "two"),
        ([], [2], "three"),
    ]
    end = load_file("end.safetensors")
    for name, value in load_file("whole.safetensors").items():
        torch.testing.assert_close(end[name], value, rtol=0, atol=1e-12)


def test_what_is_wrong_starts_nothing(run: Run) -> None:
    Path("trace.yaml").write_text(TRACE.replace("0-2", "0,7,9"))
    code, told, errors = run("--elastic", "--replay", "trace.yaml")
    assert (code, told) == (2, [])
    assert errors.count("unknown: the strategies use 0-2") == 4 and "moments[2].present" in errors
    code, _, errors = run("--replay", "trace.yaml")
    assert code == 2 and "--replay goes with --elastic only" in " ".join(errors.split())


def test_pieces_that_are_lost_come_from_the_newest_checkpoint(run: Run, tmp_path: Path) -> None:
    """With ZeRO each element of the optimizer's state is on one device: all go back to one step, and on."""
    optimizer = OptimizerConfig(lr=1e-2, weight_decay=0.1, max_grad_norm=1.0)
    sharded = {"three": replace(THREE, zero=3), "two": TWO}
    bundled(tmp_path / "sharded", factory, sharded, optimizer)
    code, _, errors = run("--save", "whole.safetensors")
    assert code == 0, errors
    Path("trace.yaml").write_text("moments: [{step: 0, present: '0-2'}, {step: 5, present: '0-1'}]")
    keep = ("--checkpoint", "kept", "--every", "2", "--save", "end.safetensors")
    code, told, errors = run("--elastic", "--replay", "trace.yaml", *keep, directory=tmp_path / "sharded")
    assert code == 0, errors
    steps = [each["step"] for each in told if "step" in each]
    again = steps.index(5) + 1
    assert steps[:5] == [1, 2, 3, 4, 5] and steps[-1] == STEPS and set(range(6, STEPS + 1)) <= set(steps)
    assert sorted(steps[again:]) != list(range(6, STEPS + 1)), "steps behind the checkpoint are taken again"
    end = load_file("end.safetensors")
    for name, value in load_file("whole.safetensors").items():
        torch.testing.assert_close(end[name], value, rtol=0, atol=1e-12)
