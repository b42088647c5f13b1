"""`hspmd run` of several strategies: switches at given steps, as a user asks for them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hspmd_compiler.cli.main import main
from hspmd_compiler.options import OptimizerConfig
from tests.runtime.switch_cases import TWO, UNEVEN, WIDE, bundled
from tests.training.training_cases import SUBJECTS

ROOT = Path(__file__).resolve().parents[2]
ADAMW = OptimizerConfig(lr=1e-2)
DATA = """
from tests.training.training_cases import SUBJECTS

def batches(epoch):
    for step in range(3):
        batch = SUBJECTS["mlp-mse"].batch(10 * epoch + step)
        yield {key: value.double() for key, value in batch.items()}

def own_rows(epoch, rows, keys):
    for batch in batches(epoch):
        taken = [row for low, high in rows for row in range(low, high)]
        yield {key: batch[key][taken] for key in keys}
"""
Command = Callable[..., "subprocess.CompletedProcess[str]"]


def mlp() -> tuple[torch.nn.Module, dict[str, Tensor]]:
    batch = SUBJECTS["mlp-mse"].batch(0)
    return SUBJECTS["mlp-mse"].build().double(), {key: value.double() for key, value in batch.items()}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("switch")
    (place / "switch_data.py").write_text(DATA)
    strategies = {"wide": WIDE, "uneven": UNEVEN, "two": TWO}
    pairs = [("wide", "two"), ("two", "uneven"), ("uneven", "two")]
    bundled(place / "many", mlp, strategies, ADAMW, pairs)
    small = replace(TWO, pipelines=TWO.pipelines[:1])
    bundled(place / "sizes", mlp, {"two": TWO, "small": small}, ADAMW)
    return place


@pytest.fixture
def run_here(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """The command in this process; its ranks are forked from it."""
    monkeypatch.chdir(workplace)
    monkeypatch.syspath_prepend(str(workplace))
    monkeypatch.delenv("RANK", raising=False)

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        code, said = main(["run", *args]), capfd.readouterr()
        return subprocess.CompletedProcess(args, code, said.out, said.err)

    yield run
    sys.modules.pop("switch_data", None)


def losses(out: str) -> list[float]:
    records = [json.loads(line) for line in out.splitlines()]
    return [record["loss"] for record in records if "loss" in record]


def test_switches_at_steps_change_no_loss(run_here: Command) -> None:
    """Also where each rank draws its own rows, which are others under another strategy."""
    flags = ("--epochs", "2", "--json")
    plain = run_here("many/two", "--data", "switch_data:batches", *flags)
    assert plain.returncode == 0, plain.stderr
    switched = run_here(
        "many",
        "--data",
        "switch_data:own_rows",
        "--start",
        "wide",
        "--switch-at",
        "2:two,5:uneven,9:two",
        *flags,
    )
    assert switched.returncode == 0, switched.stderr
    assert losses(switched.stdout) == pytest.approx(losses(plain.stdout), rel=1e-10)
    assert len(losses(plain.stdout)) == 6
    told = [json.loads(line) for line in switched.stdout.splitlines()]
    made = [record["switched"] for record in told if "switched" in record]
    assert [(each["step"], each["source"], each["target"]) for each in made] == [
        (2, "wide", "two"),
        (5, "two", "uneven"),
    ]
    assert all(each["moved_bytes"] > 0 and each["seconds"] > 0 for each in made)
    assert told[-1] == {"unreached": [[9, "two"]], "taken": [1, 6]}


def test_a_log_tells_of_switches(run_here: Command) -> None:
    done = run_here("many", "--data", "switch_data:batches", "--epochs", "1", "--switch-at", "2:two,7:uneven")
    lines = done.stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("before step 2: from wide to two, ")]
    assert lines.index(line) == 5 and "KB moved, " in line
    assert lines[-1] == "warning: the run took steps 1 to 3, and made no switch 7:uneven"


def test_mistakes_are_told_at_once(run_here: Command, expect: Callable[[str, str], None]) -> None:
    data = ("--data", "switch_data:batches", "--steps", "9")
    texts = []
    for place, *args in (
        ("many", "--start", "wife", "--switch-at", "2:too,10:two", "--trace", "t.json"),
        ("many", "--switch-at", "2:two,4:wide"),
        ("many/two", "--start", "two", "--switch-at", "2:two", "--switch-round", "1MiB"),
        ("sizes", "--switch-at", "2:small,3:two,4:two"),
        ("many/../none", "--switch-at", "2:two"),
        ("many", "--start", "two", "--switch-at", "2:two,3:uneven,4:uneven"),
        ("many", "--switch-at", "3:two,2:two,x:two,4,5:", "--threads", "0"),
    ):
        done = run_here(place, *data, *args)
        assert done.returncode == 2 and not done.stdout
        texts.append(done.stderr)
    expect("cli/run_switch_mistakes", "\n".join(texts))


def test_a_changed_plan_is_told_before_the_first_step(run_here: Command, workplace: Path) -> None:
    shutil.copytree(workplace / "many", workplace / "changed")
    file = workplace / "changed" / "switch" / "two--uneven.state.json"
    file.write_text(file.read_text().replace("two", "too", 1))
    flags = ("--data", "switch_data:batches", "--steps", "9", "--switch-at", "2:two,4:uneven")
    done = run_here("changed", *flags)
    assert done.returncode == 2 and not done.stdout
    assert "two--uneven.state.json was changed after it was compiled" in done.stderr


@pytest.mark.parametrize("text", ["2", "two:2", "0:two", "2:", "4:two,2:wide", "2:two,2:wide"])
def test_switches_have_a_form(run_here: Command, text: str) -> None:
    """One error, as of any flag, and no usage."""
    done = run_here("many", "--data", "switch_data:batches", "--steps", "3", "--switch-at", text)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("OptionError: the run can't start as asked\n  --switch-at ")
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.slow
def test_torchrun_and_launchers_of_some_ranks_switch_too(workplace: Path, free_port: int) -> None:
    flags = ["many", "--data", "switch_data:batches", "--steps", "3", "--switch-at", "2:two", "--json"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--standalone"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{workplace}", "OMP_NUM_THREADS": "1"}
    environment.pop("RANK", None)
    done = subprocess.run(
        [*torchrun, "-m", "hspmd_compiler", "run", *flags],
        cwd=workplace,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    meeting = {**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    command = [sys.executable, "-m", "hspmd_compiler", "run", *flags, "--ranks"]
    halves = [
        subprocess.Popen([*command, ranks], cwd=workplace, env=meeting, stdout=subprocess.PIPE, text=True)
        for ranks in ("0,1", "2,3")
    ]
    first, second = (each.communicate(timeout=100)[0] for each in halves)
    assert [each.returncode for each in halves] == [0, 0] and not second
    assert losses(first) == losses(done.stdout) and len(losses(first)) == 3
    assert "switched" in first and "switched" in done.stdout
