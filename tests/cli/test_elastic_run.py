"""`hspmd run --elastic` as a user starts it: two processes are killed, and the weights are the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest
import torch
from safetensors.torch import load_file

from tests.runtime.elastic import product

DATA = """
import torch


def batches(epoch, rows=None):
    for number in range(5):
        generator = torch.Generator().manual_seed(100 * epoch + number)
        drawn = {key: torch.randn(8, 8, dtype=torch.float64, generator=generator) for key in ("x", "target")}
        if rows is None:
            yield drawn
        else:
            yield {key: torch.cat([all[:0]] + [all[i:j] for i, j in rows]) for key, all in drawn.items()}
"""
STEPS = 60


def command(directory: Path, *flags: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "hspmd_compiler",
        "run",
        str(directory),
        "--data",
        "kept_data:batches",
        *flags,
    ]


def children_of(launcher: int) -> list[int]:
    """The oldest hosts the store; ranks come next."""
    return sorted(map(int, Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()))


def is_alive(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_processes_are_killed_and_the_weights_are_those_of_a_whole_run(tmp_path: Path) -> None:
    """Data that each rank loads for itself; a new process finds its place in them."""
    directory = product.compiled(product.twice(), tmp_path / "twice")
    (tmp_path / "kept_data.py").write_text(DATA)
    whole, killed = tmp_path / "whole.safetensors", tmp_path / "killed.safetensors"
    flags = ("--steps", str(STEPS), "--json", "--save")
    subprocess.run([*command(directory, *flags, str(whole))], cwd=tmp_path, check=True, capture_output=True)
    run = subprocess.Popen(
        command(directory, *flags, str(killed), "--elastic", "--elastic-respawn", "1"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    records = []
    with run:
        assert run.stdout is not None
        for line in run.stdout:
            records.append(json.loads(line))
            if records[-1].get("step") in (10, 30):
                os.kill(children_of(run.pid)[2], signal.SIGKILL)
    assert run.returncode == 0 and "ranks" not in records[0]
    assert [record["step"] for record in records if "step" in record] == list(range(1, STEPS + 1))
    changes = [record["regroup"] for record in records if "regroup" in record]
    assert [each["strategy"] == "twice" for each in changes] == [True, False]
    expected, found = load_file(whole), load_file(killed)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10 * float(value.abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_launcher(number: int, tmp_path: Path) -> None:
    """No process, no word of ours on the terminal; no file either, where the launcher is asked to end."""
    directory = product.compiled(product.twice(), tmp_path / "twice")
    (tmp_path / "kept_data.py").write_text(DATA)
    flags = ("--steps", "100000", "--json", "--elastic")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with (
        open(tmp_path / "errors", "w") as errors,
        subprocess.Popen(
            command(directory, *flags),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "TMPDIR": str(scratch)},
        ) as run,
    ):
        assert run.stdout is not None
        for line in run.stdout:
            if json.loads(line).get("step") == 3:
                children = children_of(run.pid)
                run.send_signal(number)
                break
    end = monotonic() + 20
    while any(map(is_alive, children)) and monotonic() < end:
        sleep(0.1)
    assert len(children) >= 5 and not any(map(is_alive, children))
    assert (tmp_path / "errors").read_text() == ""
    if number == signal.SIGTERM:
        assert run.returncode == 143 and not list(scratch.glob("hspmd*"))
