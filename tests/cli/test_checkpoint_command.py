"""`hspmd run --checkpoint` with real processes: however it ends, it goes on, under any strategy."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.cli.main import main
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.runtime.saved.checkpoint.folders import INDEX
from hspmd_compiler.runtime.saved.safetensors_file import SafetensorsWriter
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from tests.runtime.switch_cases import bundled

BATCH, WIDTH, LAYERS = 6, 8, 2
ALL = (0, LAYERS)
FIRST = Strategy(
    (PipelineSpec((StageSpec((0, 1), ALL),), (2, 2)), PipelineSpec((StageSpec((2,), ALL),), (2,))), zero=3
)
SECOND = Strategy((PipelineSpec((StageSpec((0,), (0, 1)), StageSpec((1,), (1, 2))), (3, 3)),), zero=1)

DATA = """
import os, signal, time
import torch
import torch.distributed as dist

def batches(seed, epoch):
    torch.manual_seed(seed + epoch)
    while True:
        yield {"x": torch.randn(6, 8, dtype=torch.float64), "y": torch.randn(6, 8, dtype=torch.float64)}

def slow(seed, epoch):
    for step, batch in enumerate(batches(seed, epoch), 1):
        time.sleep(0.2 if step > 2 else 0)  # a disk has time
        yield batch

def killed(seed, epoch):
    for step, batch in enumerate(slow(seed, epoch), 1):
        if step == 5 and dist.get_rank() == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch
"""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH, dtype=torch.float64)
        self.down = nn.Linear(2 * WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Blocks(nn.Module):
    """Residual blocks in float64, whose sums differ by their order only far behind the point."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return nn.functional.mse_loss(x, y)


Run = Callable[..., subprocess.CompletedProcess[str]]


def example() -> dict[str, Tensor]:
    return {key: torch.zeros(BATCH, WIDTH, dtype=torch.float64) for key in "xy"}


def factory() -> tuple[nn.Module, dict[str, Tensor]]:
    return Blocks(), example()


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model under two strategies."""
    home = tmp_path_factory.mktemp("artifacts")
    optimizer = OptimizerConfig(lr=1e-2, weight_decay=0.1, max_grad_norm=1.0)
    both = {"first": FIRST, "second": SECOND}
    for name, strategy in both.items():
        hspmd.compile(factory, strategy=strategy, optimizer=optimizer).save(home / name)
    bundled(home / "both", factory, both, optimizer)
    return home


@pytest.fixture
def run(
    artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """The command in this process, whose ranks are forked from it."""
    (tmp_path / "own_data.py").write_text(DATA)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("RANK", raising=False)

    def run(artifact: str, *args: str, data: str = "batches") -> subprocess.CompletedProcess[str]:
        code = main(["run", str(artifacts / artifact), "--data", f"own_data:{data}", *args])
        said = capfd.readouterr()
        return subprocess.CompletedProcess(args, code, said.out, said.err)

    yield run
    sys.modules.pop("own_data", None)


KEEP = ("--checkpoint", "kept", "--every", "2")


def checked(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def kept() -> list[str]:
    return sorted(path.name for path in Path("kept").iterdir())


def parameters(file: str) -> dict[str, Tensor]:
    return dict(load_file(file))


def test_killed_it_goes_on_under_another_strategy(run: Run) -> None:
    checked(run("first", "--steps", "6", "--save", "whole.safetensors"))
    died = run("first", "--steps", "6", *KEEP, data="killed")
    assert died.returncode == 1 and "rank 1" in died.stderr and "signal 9" in died.stderr
    assert "checkpoint of step 2: " in died.stdout and "step-00000002" in kept()

    other = checked(run("second", "--steps", "4", "--resume", "kept", "--save", "other.safetensors"))
    assert f"goes on from {Path('kept/step-00000002')}" in other and "step     3  epoch 0" in other
    same = checked(
        run("first", "--steps", "4", *KEEP, "--keep", "1", "--resume", "kept", "--save", "same.safetensors")
    )
    assert kept() == ["step-00000006"], same
    whole, other_end, same_end = (parameters(f"{name}.safetensors") for name in ("whole", "other", "same"))
    for name, value in whole.items():
        assert torch.equal(same_end[name], value), name
        torch.testing.assert_close(other_end[name], value, rtol=0, atol=1e-12)


def test_a_rank_killed_in_a_save(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last good one stays, and what is half-written goes with the next run."""
    write = SafetensorsWriter.write

    def dying(self: SafetensorsWriter, name: str, tensor: Tensor) -> None:
        write(self, name, tensor)
        if self._path.parent.name.startswith("step-00000004") and self._path.name == "rank-0001.safetensors":
            os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(SafetensorsWriter, "write", dying)
        died = run("first", "--steps", "60", *KEEP, data="slow")
    assert died.returncode == 1 and "signal 9" in died.stderr
    assert [re.sub(r"\.[0-9a-f]+\.", ".", name) for name in kept()] == ["step-00000002", "step-00000004.part"]
    assert "goes on from kept/step-00000002" in checked(
        run("first", "--steps", "1", *KEEP, "--resume", "kept")
    )
    assert kept() == ["step-00000002", "step-00000003"]


def test_a_full_disk(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind step 2: training goes on, the run ends with the error of its last step, behind --save."""
    write = SafetensorsWriter.write

    def full(self: SafetensorsWriter, name: str, tensor: Tensor) -> None:
        if self._path.name == "rank-0001.safetensors" and "step-00000002" not in str(self._path):
            self._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
        write(self, name, tensor)

    monkeypatch.setattr(SafetensorsWriter, "write", full)
    done = run("first", "--steps", "6", *KEEP, "--keep", "1", "--save", "end.safetensors", data="slow")
    assert done.returncode == 2 and "the checkpoint of step 6 can't be written to kept" in done.stderr
    assert "warning: there is no checkpoint of step 4: rank 1: " in done.stdout
    assert "No space left on device" in done.stderr and "step     6" in done.stdout
    assert kept() == ["step-00000002"] and Path("end.safetensors").is_file()


def test_a_launcher_that_is_asked_to_end(run: Run) -> None:
    pid = os.fork()
    if not pid:
        try:
            run("first", "--steps", "1000", *KEEP, data="slow")
        finally:
            os._exit(0)
    deadline = time.monotonic() + 60
    while not Path("kept/step-00000004").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    time.sleep(0.2)
    names = kept()
    assert 1 <= sum("." not in name for name in names) <= 2
    told = checked(run("first", "--steps", "1", *KEEP, "--resume", "kept"))
    last = max(name for name in names if "." not in name)
    assert f"goes on from kept/{last}" in told
    assert not any(name.endswith(".part") for name in kept())


def test_a_damaged_one_is_told_and_the_one_before_is_used(run: Run) -> None:
    checked(run("first", "--steps", "4", *KEEP, data="slow"))
    file = Path("kept/step-00000004/rank-0002.safetensors")
    content = bytearray(file.read_bytes())
    content[-5] ^= 4
    file.write_bytes(content)
    lines = checked(run("second", "--steps", "1", "--resume", "kept", "--json")).splitlines()
    _, damaged, found, step, *_ = map(json.loads, lines)
    assert damaged["resumed"]["folder"] == "kept/step-00000004"
    assert "the content of rank-0002.safetensors doesn't match its hash" in damaged["resumed"]["problem"]
    assert found["resumed"] == {"folder": "kept/step-00000002", "problem": ""} and step["step"] == 3
    refused = run("second", "--steps", "1", "--resume", "kept/step-00000004")
    assert refused.returncode == 2 and "rank-0002.safetensors" in refused.stderr


def test_later_ones_do_not_stay_among_those_of_a_run_from_an_earlier_one(run: Run) -> None:
    checked(run("first", "--steps", "4", *KEEP, data="slow"))
    refused = run("first", "--steps", "1", *KEEP, "--resume", "kept/step-00000002")
    assert refused.returncode == 2 and "--checkpoint kept: step-00000004 is of later steps" in refused.stderr
    Path("kept/step-00000004").rename("moved")
    checked(run("first", "--steps", "1", *KEEP, "--resume", "kept/step-00000002"))
    assert kept() == ["step-00000002", "step-00000003"]


def test_what_is_wrong_on_all_ranks_is_told_once(run: Run) -> None:
    checked(run("first", "--steps", "2", *KEEP))
    (Path("kept/step-00000002") / INDEX).unlink()
    told = run("first", "--steps", "1", "--resume", "kept").stderr
    assert told.count("No such file") == 1 and "on all ranks: " in told, told


def test_one_command_begins_and_goes_on(run: Run) -> None:
    """As a job that is started again and again."""
    command = ("first", "--steps", "3", *KEEP, "--resume", "kept")
    assert "no checkpoint yet: begins anew" in checked(run(*command))
    assert "goes on from kept/step-00000003" in checked(run(*command))
    refused = run("first", "--steps", "1", *KEEP)
    assert refused.returncode == 2 and "holds checkpoints already" in refused.stderr


def test_a_strategy_that_leaves_a_rank_idle(run: Run) -> None:
    """Behind a switch to it: the idle rank owns nothing, and any strategy goes on."""
    checked(run("first", "--steps", "6", "--save", "whole.safetensors"))
    told = checked(run("both", "--steps", "4", "--switch-at", "3:second", *KEEP))
    assert "checkpoint of step 4" in told
    files = {path.name for path in Path("kept/step-00000004").iterdir()}
    assert files == {"index.json", "rank-0000.safetensors", "rank-0001.safetensors"}
    again = ("both", "--start", "second", "--steps", "2", "--resume", "kept", "--save", "end.safetensors")
    checked(run(*again))
    for name, value in parameters("whole.safetensors").items():
        torch.testing.assert_close(parameters("end.safetensors")[name], value, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_under_torchrun_it_is_started_again(run: Run, artifacts: Path) -> None:
    """Its agent ends all ranks where one dies, and starts them anew: from the newest checkpoint."""
    checked(run("first", "--steps", "6", "--save", "whole.safetensors"))
    root = str(Path(__file__).resolve().parents[2])
    ranks = ["-m", "torch.distributed.run", "--nproc-per-node", "3", "--standalone", "--max-restarts", "1"]
    command = [sys.executable, *ranks, "-m", "hspmd_compiler", "run", str(artifacts / "first")]
    flags = ["--data", "own_data:killed", "--steps", "6", *KEEP, "--resume", "kept"]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{Path.cwd()}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *flags], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "goes on from kept/step-00000002" in done.stdout
    checked(
        run(
            "first",
            "--steps",
            "1",
            "--resume",
            "kept/step-00000006",
            "--lr",
            "0",
            "--save",
            "same.safetensors",
        )
    )
    whole, same = parameters("whole.safetensors"), parameters("same.safetensors")
    assert all(torch.equal(same[name], value) for name, value in whole.items())


def test_bad_values(run: Run) -> None:
    Path("file").write_text("")
    Path("empty").mkdir()
    done = run("first", "--steps", "1", "--checkpoint", "file", "--every", "0", "--resume", "empty")
    assert done.returncode == 2
    assert [line.split(":")[0] for line in done.stderr.splitlines()[1:]] == [
        "  --every      0",
        "  --checkpoint file",
        "  --resume     empty",
    ]
    assert "goes with --checkpoint only" in run("first", "--steps", "1", "--keep", "3").stderr
