"""Commands on programs of any size, with real processes: text and data, going on, switches, a lost rank."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from hspmd_compiler.cli.main import main

TP = {
    "pipelines": [
        {"stages": [{"devices": [0, 1], "layers": 1}, {"devices": [2], "layers": 1}], "micro_batches": [1]},
        {"stages": [{"devices": [3], "layers": 2}], "micro_batches": [1]},
    ],
    "sequence_parallel": True,
    "sizes": {"tokens": [1, 48]},
}
SMALL = {
    "pipelines": [{"stages": [{"devices": [0, 1], "layers": 2}], "micro_batches": [1]}],
    "sizes": {"tokens": [1, 48]},
}
MODEL = ["llama-tiny", "--arg", "layers=2", "--arg", "hidden=16", "--arg", "ffn=16", "--arg", "packed=1"]
DATA = """
import os, signal, time
import torch
import torch.distributed as dist

def rows(seed, epoch):
    drawn = torch.Generator().manual_seed(seed + epoch)
    for step in range(6):
        made = []
        for _ in range(3):
            lengths = torch.randint(1, 12, (3,), generator=drawn).tolist()
            places = torch.cat([torch.arange(length) for length in lengths])
            ids = torch.randint(0, 256, places.shape, generator=drawn)
            ends = torch.cat([places[1:] == 0, torch.tensor([True])])
            labels = ids.roll(-1).masked_fill(ends, -100)
            made.append({"input_ids": ids, "labels": ids, "shift_labels": labels, "position_ids": places})
        yield made

def killed(seed, epoch):
    for step, made in enumerate(rows(seed, epoch), 1):
        if step == 4 and dist.get_rank() == 3 and os.path.exists("kill"):
            os.remove("kill")
            os.kill(os.getpid(), signal.SIGKILL)
        yield made
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    (tmp_path / "sized_rows.py").write_text(DATA)
    for name, form in {"wide": TP, "narrow": SMALL}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(form))
    for number, length in enumerate((30, 4, 17, 9, 45), 1):
        (tmp_path / f"{number}.txt").write_text(str(number) * length)
    return tmp_path


def losses(capfd: pytest.CaptureFixture[str], *args: str, wanted: int = 0) -> list[float]:
    """Of the steps of a run."""
    assert main(["run", *args, "--json"]) == wanted
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    return [line["loss"] for line in lines if "loss" in line]


def told(capfd: pytest.CaptureFixture[str], args: Sequence[str], code: int = 2) -> str:
    assert main(list(args)) == code
    return capfd.readouterr().err


FILES = ["--text", *(f"{number}.txt" for number in range(1, 6))]


@pytest.mark.slow
def test_one_artifact(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Trained on files and on data, kept, gone on with, proved, shown; what can't be is one error."""
    assert main(["compile", *MODEL, "--strategy", "wide.json", "-o", "a"]) == 0
    capfd.readouterr()
    every = losses(capfd, "a", *FILES, "--pack", "48", "--steps", "3", "--save-state", "s", "--save", "w")
    assert len(every) == 3 and every[2] < every[0]
    assert len(losses(capfd, "a", *FILES, "--pack", "48", "--steps", "1", "--resume", "s")) == 1
    given = losses(capfd, "a", "--data", "sized_rows:rows", "--steps", "4", "--trace", "t")
    first = losses(capfd, "a", "--data", "sized_rows:rows", "--steps", "2", "--save-state", "d")
    rest = losses(capfd, "a", "--data", "sized_rows:rows", "--steps", "2", "--resume", "d")
    assert [*first, *rest] == pytest.approx(given, rel=1e-6)
    assert main(["verify", "a", "--values", "--data", "sized_rows:rows"]) == 0
    assert main(["inspect", "a"]) == 0
    assert main(["cluster", "new", "--node", "4xA100-80", "-o", "c.json"]) == 0
    assert main(["estimate", "a", "--cluster", "c.json", "--pace-out", "p"]) == 0
    shown = capfd.readouterr().out
    assert "micro-batches of 1 to 48 tokens" in shown and "figures are those of 11 tokens" in shown
    data = ["--data", "sized_rows:rows", "--steps", "1"]
    assert "a pace is given for a program whose steps have other instructions each" in told(
        capfd, ["run", "a", *data, "--pace", "p"]
    )
    assert "49: the program's rows have 1 to 48 tokens" in told(
        capfd, ["run", "a", *FILES, "--pack", "49", "--steps", "1"]
    )
    assert "give --pack TOKENS, at most 48" in told(capfd, ["run", "a", *FILES, "--steps", "1"])


@pytest.mark.slow
def test_several_strategies(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Another number of pipelines: plans follow the strategy that runs, also where a rank was lost."""
    assert main(["compile", *MODEL, "--strategy", "wide.json", "--strategy", "narrow.json", "-o", "b"]) == 0
    capfd.readouterr()
    data = ["--data", "sized_rows:killed", "--steps", "6"]
    plain = losses(capfd, "b", *data)
    assert losses(capfd, "b", *data, "--switch-at", "3:narrow,5:wide") == pytest.approx(plain, rel=1e-5)
    (folder / "kill").touch()
    assert losses(capfd, "b", *data, "--elastic") == pytest.approx(plain, rel=1e-5)
    assert "--pack" in told(capfd, ["run", "b", *FILES, "--pack", "48", "--steps", "1", "--elastic"])
    assert main(["verify", "b", "--values"]) == 0
