"""A user's mistakes: each ends with one clear text and exit code 2, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from hspmd_compiler.artifact.json_text import fingerprint
from hspmd_compiler.artifact.write import write
from hspmd_compiler.cli.main import COMMANDS, main
from tests.artifact import sample

Expect = Callable[[str, str], None]

STRATEGY = {
    "pipelines": [{"stages": [{"devices": [0, 1], "layers": [0, 2]}], "micro_batches": [2, 2]}],
}
TWICE = {"pipelines": [{"stages": [{"devices": [0, 0], "layers": [0, 2]}], "micro_batches": [2]}]}

MACHINES = "nodes:\n- {address: a, devices: [{count: 2, memory: 80G, flops: .nan}], link: {bandwidth: -1}}\n"


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with good and bad files, entered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("RANK", raising=False)
    write("good", sample.artifact())
    write("part", sample.artifact(), rank=2)
    write("three", replace(sample.artifact(), strategy=STRATEGY))
    for name in ("byte", "schema", "torch", "half"):
        write(name, sample.artifact())
    flip(tmp_path / "byte" / "classes" / "p0-s0.json", 40)
    rewrite(tmp_path / "schema", schema=7)
    rewrite(tmp_path / "torch", torch=["1.0", "1.1"])
    (tmp_path / "half" / "ranks" / "3.json").unlink()
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.json").write_text('{"pipelines": [')
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "strategy.json").write_text(json.dumps(STRATEGY))
    (tmp_path / "twice.json").write_text(json.dumps(TWICE))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "hosts").write_text("a slots=4\n")
    (tmp_path / "machines.yaml").write_text(MACHINES)
    return tmp_path


def flip(path: Path, at: int) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


def rewrite(directory: Path, **change: object) -> None:
    file = directory / "manifest.json"
    body = json.loads(file.read_text()) | change
    del body["sha256"]
    file.write_text(json.dumps(body | {"sha256": fingerprint(body)}))


TO = ["-o", "out"]

CASES: dict[str, list[str]] = {
    "no-command": [],
    "unknown-command": ["optimize"],
    "unknown-flag": ["inspect", "good", "--paint"],
    "trace-unknown-model": ["trace", "lama-tiny"],
    "trace-missing-config": ["trace", "nowhere/config.json"],
    "trace-malformed-config": ["trace", "config.json"],
    "trace-missing-module": ["trace", "no_such_module:build"],
    "trace-argument-without-value": ["trace", "mlp", "--arg", "hidden"],
    "trace-argument-twice": ["trace", "mlp", "--arg", "hidden=1", "--arg", "hidden=2"],
    "trace-unknown-argument": ["trace", "mlp", "--arg", "hidde=3"],
    "coverage-unknown-flag": ["coverage", "--models"],
    "rules-unknown-operator": ["rules", "softmx"],
    "trace-batch": ["trace", "mlp", "--batch", "0"],
    "compile-no-strategy": ["compile", "mlp", *TO],
    "compile-missing-strategy": ["compile", "mlp", "--strategy", "nowhere.json", *TO],
    "compile-malformed-strategy": ["compile", "mlp", "--strategy", "broken.json", *TO],
    "compile-device-twice": ["compile", "mlp", "--strategy", "twice.json", *TO],
    "compile-unknown-device-kind": ["compile", "mlp", "--strategy", "strategy.json", *TO, "--device", "tpu"],
    "compile-bad-optimizer": [
        *["compile", "mlp", "--strategy", "strategy.json", *TO],
        *["--lr", "-1", "--betas", "0.9,1.5", "--lr-schedule", "cosine"],
    ],
    "compile-one-beta": ["compile", "mlp", "--strategy", "strategy.json", *TO, "--betas", "0.9"],
    "verify-missing": ["verify", "nowhere"],
    "verify-file": ["verify", "notes.txt"],
    "verify-empty": ["verify", "empty"],
    "verify-changed-byte": ["verify", "byte"],
    "verify-half": ["verify", "half"],
    "verify-argument-without-model": ["verify", "good", "--arg", "hidden=3"],
    "verify-length-without-model": ["verify", "good", "--seq-len", "8"],
    "inspect-missing": ["inspect", "nowhere"],
    "inspect-changed-byte": ["inspect", "byte"],
    "inspect-schema": ["inspect", "schema"],
    "inspect-torch": ["inspect", "torch"],
    "inspect-rank-beyond": ["inspect", "good", "--rank", "4"],
    "inspect-rank-absent": ["inspect", "part", "--rank", "1"],
    "inspect-unknown-tensor": ["inspect", "good", "--tensor", "w3"],
    "inspect-schedule-of-part": ["inspect", "part", "--schedule"],
    "inspect-two-pages": ["inspect", "good", "--comm", "--schedule"],
    "run-no-data": ["run", "good", "--steps", "1"],
    "run-no-end": ["run", "good", "--data", "m:f"],
    "run-bad-values": [
        *["run", "good", "--text", "nowhere.txt", "--steps", "0", "--lr", "nan", "--init", "nowhere"],
        *["--threads", "-1", "--timeout", "0", "--start-timeout", "inf", "--seed", "9223372036854775808"],
    ],
    "run-tokenizer-without-text": ["run", "good", "--data", "m:f", "--steps", "1", "--tokenizer", "empty"],
    "run-ranks-not-numbers": ["run", "good", "--data", "m:f", "--steps", "1", "--ranks", "4,x"],
    "run-ranks-beyond": ["run", "good", "--data", "m:f", "--steps", "1", "--ranks", "3-5"],
    "run-save-nowhere": ["run", "good", "--data", "m:f", "--steps", "1", "--save", "nowhere/w.safetensors"],
    "run-state-nowhere": ["run", "good", "--data", "m:f", "--steps", "1", "--save-state", "nowhere/s"],
    "run-resume-nowhere": ["run", "good", "--data", "m:f", "--steps", "1", "--resume", "nowhere"],
    "run-missing": ["run", "nowhere", "--data", "m:f", "--steps", "1"],
    "run-schema": ["run", "schema", "--data", "m:f", "--steps", "1"],
    "estimate-nothing": ["estimate", "--cluster", "notes.txt"],
    "estimate-misspelt-flag": ["estimate", "good", "--clutser", "hosts", "--htlm=page.html"],
    "run-misspelt-flag": ["run", "good", "--data", "m:f", "--setps", "3"],
    "cluster-misspelt-flag": ["cluster", "new", "--nodes", "2xT4"],
    "estimate-two-things": ["estimate", "good", "--model", "mlp", "--cluster", "notes.txt"],
    "estimate-no-strategy": ["estimate", "--model", "mlp", "--cluster", "notes.txt"],
    "estimate-missing": ["estimate", "nowhere", "--cluster", "hosts"],
    "estimate-no-cluster": ["estimate", "good", "--cluster", "nowhere.yaml"],
    "estimate-part": ["estimate", "part", "--cluster", "hosts"],
    "profile-counts": ["profile", "-o", "c.yaml", "--ranks", "0", "--threads", "0"],
    "profile-no-folder": ["profile", "-o", "nowhere/c.yaml"],
    "launch-no-artifact": ["launch", "nowhere", "--hosts", "notes.txt"],
    "launch-bad-hosts": ["launch", "three", "--hosts", "notes.txt"],
    "cluster-no-node": ["cluster", "new", "-o", "c.yaml"],
    "cluster-bad-nodes": [
        *["cluster", "new", "--node", "3*8xH900", "--node", "2xA100+0xV100,nic=5", "--node", "gpu[1=8xT4"],
        *["--node", "a=2xcpu+1xT4,zone=,size=1", "--node", "a=2xRTX,nic=1Gbit,nic=2Gbit"],
        *["--node", "2*b=1xT4", "--link", "nvlunk", "--nic", "25G", "--network", "9gb/s@-5us"],
        *["--price", "-3", "--price", "K80=nan", "--price", "L4=2", "--cores", "many", "-o", "c.yaml"],
    ],
    "cluster-unknown-device": ["cluster", "new", "--node", "2xRTX-5090", "--node", "4xA100-64"],
    "cluster-no-nvlink": ["cluster", "new", "--node", "2x4090", "--node", "2xT4", "--link", "nvlink"],
    "cluster-empty-flag": ["cluster", "new", "--node", "2xT4", "--zone", " "],
    "cluster-no-suffix": ["cluster", "new", "--node", "2xT4", "-o", "c"],
    "cluster-no-folder": ["cluster", "new", "--node", "2xT4", "-o", "nowhere/c.yaml"],
    "plan-without-cluster": ["plan", "llama-tiny", "--cluster", "nowhere.yaml"],
    "plan-malformed-cluster": ["plan", "llama-tiny", "--cluster", "broken.json"],
    "cluster-show-missing": ["cluster", "show", "nowhere.yaml"],
    "cluster-show-malformed": ["cluster", "show", "broken.json"],
    "cluster-show-bad": ["cluster", "show", "machines.yaml"],
    "strategy-missing": ["strategy", "show", "nowhere.yaml"],
    "strategy-malformed": ["strategy", "show", "broken.json"],
    "strategy-not-text": ["strategy", "show", "binary.yaml"],
    "strategy-device-twice": ["strategy", "show", "twice.json"],
    "strategy-unknown-form": ["strategy", "expand", "strategy.json", "--to", "toml"],
}


def call(args: list[str]) -> int:
    try:
        return main(args)
    except SystemExit as end:  # argparse's way out
        assert isinstance(end.code, int)
        return end.code


def stable(text: str) -> str:
    """What is ours of a text: argparse words usages and choices anew in each Python, hashes are no words."""
    if text.startswith("usage:"):
        return text.splitlines()[-1].partition(" (choose from")[0]
    text = re.sub(r"[0-9a-f]{64}", "HASH", text).replace(version("torch"), "TORCH")
    return "\n".join(line for line in text.splitlines() if "importlib" not in line)


@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workplace: Path, capfd: pytest.CaptureFixture[str], expect: Expect) -> None:
    before = {path for path in workplace.rglob("*") if "__pycache__" not in path.parts}
    code = call(CASES[name])
    told = capfd.readouterr()
    assert (code, told.out) == (2, "")
    assert "Traceback" not in told.err
    assert {path for path in workplace.rglob("*") if "__pycache__" not in path.parts} == before
    expect(f"cli/{name}", stable(told.err.replace(str(workplace), ".")))


def test_every_command_has_bad_input() -> None:
    tried = {args[0] for args in CASES.values() if args}
    assert {command.name for command in COMMANDS} - tried == {"demo"}  # takes no input


def test_a_failure_of_ours_is_told_as_ours(
    workplace: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("gone")

    monkeypatch.setattr("hspmd_compiler.pages.inspect.overview", fail)
    assert call(["inspect", "good"]) == 1
    told = capfd.readouterr().err
    assert told.startswith("InternalError: KeyError: 'gone'\n")
    assert "hspmd_compiler/cli/inspect.py" in told
    assert "Traceback" not in told
    monkeypatch.setenv("HSPMD_TRACEBACK", "1")
    assert call(["inspect", "good"]) == 1
    assert "Traceback" in capfd.readouterr().err


def test_a_reader_that_stops_early_is_no_failure(workplace: Path) -> None:
    read, written = os.pipe()
    os.close(read)
    child = os.fork()
    if child == 0:
        os.dup2(written, 1)
        os._exit(main(["inspect", "good"]))
    os.close(written)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
