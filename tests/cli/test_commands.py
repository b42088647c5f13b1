"""Commands that need nothing but files: what they print, for people and for scripts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hspmd_compiler.artifact.write import write
from hspmd_compiler.cli.command import model_arguments
from hspmd_compiler.cli.main import COMMANDS, main, parser
from hspmd_compiler.cli.optimizer_flags import optimizer_from
from hspmd_compiler.cli.training.training_view import JsonLines, LogLines
from hspmd_compiler.options import OptimizerName, ScheduleName
from hspmd_compiler.strategy.formats.read import read_strategy
from tests.artifact import sample

Expect = Callable[[str, str], None]

STRATEGY = """
pipelines:
  - stages:
      - {devices: [0, 1, 2], layers: [0, 3], shares: [2, 1, 1]}
      - {devices: [4], layers: [3, 4]}
    micro_batches: [4, 4, 2]
  - stages: [{devices: [7], layers: [0, 4]}]
    micro_batches: [4, 1]
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write("good", sample.artifact())
    Path("strategy.yaml").write_text(STRATEGY)
    return tmp_path


@pytest.mark.parametrize("page", [[], ["--rank", "1"], ["--comm"], ["--schedule"]])
def test_inspect(workplace: Path, capsys: pytest.CaptureFixture[str], page: list[str]) -> None:
    assert main(["inspect", "good", *page]) == 0
    text = capsys.readouterr().out
    assert main(["inspect", "good", *page, "--json"]) == 0
    sections = json.loads(capsys.readouterr().out)
    assert text
    assert all(isinstance(content, list) for content in sections.values())


def test_strategy_is_shown(workplace: Path, capsys: pytest.CaptureFixture[str], expect: Expect) -> None:
    assert main(["strategy", "show", "strategy.yaml", "--schedules"]) == 0
    expect("cli/strategy", capsys.readouterr().out)


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_strategy_is_converted(workplace: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    assert main(["strategy", "expand", "strategy.yaml", "--to", form]) == 0
    Path(f"printed.{form}").write_text(capsys.readouterr().out)
    assert main(["strategy", "expand", "strategy.yaml", "-o", f"written.{form}"]) == 0
    given = read_strategy(Path("strategy.yaml"))
    assert read_strategy(Path(f"printed.{form}")) == read_strategy(Path(f"written.{form}")) == given


def test_trace_counts(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "mlp", "--batch", "3", "--rows", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    facts = {row["fact"]: row["value"] for row in said["graph"]}
    assert facts["batch"] == 3
    assert facts["forward operators"] == sum(row["forward"] for row in said["operators"])
    assert len(said["rows"]) == facts["nodes"]


def test_optimizer_flags() -> None:
    flags = ["--optimizer", "adamw", "--lr", "0.01", "--betas", "0.8,0.95", "--no-decay", "*.bias"]
    flags += ["--max-grad-norm", "1", "--lr-schedule", "linear", "--warmup-steps", "5", "--total-steps", "50"]
    args = parser().parse_args(["compile", "mlp", "--strategy", "s", "-o", "d", *flags])
    made = optimizer_from(args)
    assert (made.name, made.lr, made.betas) == (OptimizerName.ADAMW, 0.01, (0.8, 0.95))
    assert (made.no_decay, made.max_grad_norm) == (("*.bias",), 1.0)
    assert (made.schedule.name, made.schedule.total_steps) == (ScheduleName.LINEAR, 50)


def test_model_arguments_keep_equal_signs() -> None:
    flags = ["--arg", "a=1", "--arg", "b=x=y", "--arg", "c="]
    assert model_arguments(parser().parse_args(["trace", "mlp", *flags])) == {"a": "1", "b": "x=y", "c": ""}


def test_a_length_is_the_argument_seq(capsys: pytest.CaptureFixture[str]) -> None:
    given = parser().parse_args(["compile", "gpt2", "--strategy", "s", "-o", "d", "--seq-len", "2048"])
    assert model_arguments(given) == {"seq": "2048"}
    assert main(["trace", "llama-tiny", "--seq-len", "8", "--arg", "layers=1", "--json"]) == 0
    facts = {row["fact"]: row["value"] for row in json.loads(capsys.readouterr().out)["graph"]}
    assert facts["input input_ids"] == "i64[2,8]"
    assert main(["trace", "llama-tiny", "--seq-len", "0"]) == 2
    assert "seq  '0': wanted a positive whole number" in capsys.readouterr().err
    assert main(["trace", "llama-tiny", "--seq-len", "8", "--arg", "seq=9"]) == 2
    assert "seq  given more than once" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "ranks"), [("4,5,6", [4, 5, 6]), ("4-6", [4, 5, 6]), ("0,2-3", [0, 2, 3])])
def test_ranks(text: str, ranks: list[int]) -> None:
    args = parser().parse_args(["run", "d", "--data", "m:f", "--ranks", text])
    assert args.ranks == ranks


@pytest.mark.parametrize("text", ["7-", "-7", "a", "0-99999999999999999999", ""])
def test_texts_that_are_no_ranks(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["run", "d", "--data", "m:f", f"--ranks={text}"])
    assert ended.value.code == 2 and "not a list of ranks" in capsys.readouterr().err


def test_steps_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    step = {"step": 3, "epoch": 0, "loss": 2.5, "lr": 1e-3, "grad_norm": None, "seconds": 0.25}
    step |= {"samples": 3, "tokens": 96}
    LogLines().show({"ranks": ["host 0 cpu", "host 1 cpu"]})
    LogLines().show(step)
    LogLines().show(step | {"tokens": None})
    JsonLines().show(step)
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == [
        "rank 0: host 0 cpu",
        "rank 1: host 1 cpu",
        "step     3  epoch 0  loss 2.500000  lr 1.00e-03  0.250 s  96 tokens",
        "step     3  epoch 0  loss 2.500000  lr 1.00e-03  0.250 s  3 samples",
    ]
    assert json.loads(last) == step


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert f"usage: hspmd {name}" in capsys.readouterr().out
