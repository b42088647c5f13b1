"""`hspmd run` as a user calls it: real processes, exit codes, JSON lines, a saved file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hspmd_compiler.base.pace import Pace, write_pace
from hspmd_compiler.base.trace_file import read_timeline
from hspmd_compiler.cli.main import main
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from tests.runtime import hand_made

ROOT = Path(__file__).resolve().parents[2]
Command = Callable[..., subprocess.CompletedProcess[str]]

DATA = """
from tests.runtime.hand_made import batch

def batches(epoch):
    return (batch(10 * epoch + number) for number in range(2))

def uneven(epoch):
    rest = {key: value[:2] for key, value in batch(7).items()}
    return iter([batch(epoch), rest])

def short():
    return iter([{key: value[:4] for key, value in batch(7).items()}])

def failing():
    raise ValueError("the disk is gone")
"""


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    (tmp_path / "own_data.py").write_text(DATA)
    hand_made.save(tmp_path / "made", OptimizerConfig(OptimizerName.SGD, lr=0.1))
    hand_made.save(tmp_path / "gpu", OptimizerConfig(), kind="cuda NVIDIA Nothing")
    return tmp_path


def hspmd(workplace: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("RANK", None)
    command = [sys.executable, "-m", "hspmd_compiler", "run", *args]
    return subprocess.run(
        command, cwd=workplace, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def run_here(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """The command in this process, which has imported torch; its ranks are forked from it."""
    monkeypatch.chdir(workplace)
    monkeypatch.syspath_prepend(str(workplace))
    monkeypatch.delenv("RANK", raising=False)

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        code, said = main(["run", *args]), capfd.readouterr()
        return subprocess.CompletedProcess(args, code, said.out, said.err)

    yield run
    sys.modules.pop("own_data", None)


def test_trains_as_eager(workplace: Path) -> None:
    flags = [
        "--data",
        "own_data:batches",
        "--epochs",
        "2",
        "--seed",
        "3",
        "--json",
        "--save",
        "end.safetensors",
    ]
    done = hspmd(workplace, "made", *flags)
    assert done.returncode == 0, done.stderr
    first, *steps = map(json.loads, done.stdout.splitlines())
    assert len(first["ranks"]) == 3
    params = {name: tensor.requires_grad_() for name, tensor in hand_made.initial(3).items()}
    optimizer = torch.optim.SGD(params.values(), lr=0.1)
    for step, seed in zip(steps, (0, 1, 10, 11), strict=True):
        optimizer.zero_grad()
        loss = hand_made.loss_of(params, hand_made.batch(seed))
        loss.backward()
        optimizer.step()
        assert step["loss"] == pytest.approx(loss.item(), abs=1e-12)
        assert step["epoch"] == seed // 10
    saved = load_file(workplace / "end.safetensors")
    torch.testing.assert_close({name: saved[name] for name in params}, params, atol=1e-12, rtol=0)


def test_starts_from_a_file_with_another_rate(workplace: Path, run_here: Command) -> None:
    data = ["--data", "own_data:batches"]
    assert run_here("made", *data, "--steps", "1", "--save", "one.safetensors").returncode == 0
    again = ["--steps", "1", "--init", "one.safetensors", "--lr", "0", "--save", "two.safetensors"]
    done = run_here("made", *data, *again)
    assert done.returncode == 0, done.stderr
    assert "step     1  epoch 0  loss " in done.stdout
    torch.testing.assert_close(
        load_file(workplace / "one.safetensors"), load_file(workplace / "two.safetensors")
    )


def test_goes_on_where_it_stopped(run_here: Command) -> None:
    """With the second batch of the first epoch, and the seed of the run before."""
    data = ["--data", "own_data:batches", "--json"]
    begun = run_here("made", *data, "--steps", "1", "--seed", "3", "--save-state", "state.safetensors")
    assert begun.returncode == 0, begun.stderr
    done = run_here("made", *data, "--epochs", "1", "--resume", "state.safetensors")
    assert done.returncode == 0, done.stderr
    _, first = map(json.loads, begun.stdout.splitlines())
    _, step = map(json.loads, done.stdout.splitlines())
    assert (step["step"], step["epoch"]) == (2, 0)
    params = {name: tensor.requires_grad_() for name, tensor in hand_made.initial(3).items()}
    optimizer = torch.optim.SGD(params.values(), lr=0.1)
    for record, seed in zip((first, step), (0, 1), strict=True):
        optimizer.zero_grad()
        loss = hand_made.loss_of(params, hand_made.batch(seed))
        loss.backward()
        optimizer.step()
        assert record["loss"] == pytest.approx(loss.item(), abs=1e-12)


def test_writes_what_all_ranks_did_when(workplace: Path, run_here: Command) -> None:
    write_pace(Pace({2: {0: (0.05,)}}), workplace / "pace.json")
    flags = ["--steps", "4", "--trace", "trace.json", "--trace-steps", "2", "--pace", "pace.json"]
    done = run_here("made", "--data", "own_data:batches", *flags)
    assert done.returncode == 0, done.stderr
    timeline = read_timeline(workplace / "trace.json", "measured")
    assert timeline.ranks == (0, 1, 2)
    assert sum(span.length_s for span in timeline.of(2) if span.position == 0) >= 0.05


def test_a_pace_that_does_not_fit_starts_nothing(workplace: Path, run_here: Command) -> None:
    run = ["made", "--data", "own_data:batches", "--steps", "1", "--pace", "pace.json"]
    (workplace / "pace.json").write_text('{"ranks": {"0": {"1": -1, "2": "x"}}}')
    done = run_here(*run)
    assert (done.returncode, done.stdout) == (2, "")
    assert "ranks.0.2" in done.stderr
    write_pace(Pace({1: {10_000: (0.1,)}, 7: {}}), workplace / "pace.json")
    done = run_here(*run, "--trace-steps", "0")
    assert done.returncode == 2 and "--trace-steps" in done.stderr
    done = run_here(*run)
    assert done.returncode == 2 and "ranks.7" in done.stderr, done.stderr


def test_samples_that_fill_no_batch_are_told(run_here: Command) -> None:
    done = run_here("made", "--data", "own_data:uneven", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if not line.startswith(("rank ", "step "))]
    assert told == [
        "warning: the last 2 samples of epoch 0 fill no batch and are left out",
        "left out in all: 6 samples",
    ]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["gpu", "--data", "own_data:batches"], "compiled for cuda NVIDIA Nothing"),
        (["made", "--data", "own_data:nothing"], "own_data:nothing"),
        (["made", "--data", "own_data:short"], "the data has not one whole batch"),
        (["made", "--data", "own_data:failing"], "the disk is gone"),
        (["made", "--text", "own_data.py"], "text can't give"),
    ],
)
def test_mistakes_end_the_run_at_once(run_here: Command, args: list[str], text: str) -> None:
    done = run_here(*args, "--epochs", "1")
    assert done.returncode == 2, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr
