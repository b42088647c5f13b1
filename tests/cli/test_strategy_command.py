"""`hspmd strategy`: drawings, written files, and what goes to standard error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hspmd_compiler.cli.main import main
from hspmd_compiler.cli.strategy_drawing import device_text, sizes_text, wrapped
from hspmd_compiler.strategy.formats.read import read_strategy

LINES = """
DP=2
TP=4
CP_LIST="[1,2]"
LAYERS_NUM_LIST="[[1,2],[2,1],[2,1]]"
MICRO_BATCH_NUM_LIST="[3,2]"
UNUSED_RANK="[7,22,23]"
SEQ_LEN_LIST="[64,40,24]"
"""
PLAIN = 'DP=2\nTP=2\nLAYERS_NUM_LIST="[[1,2],[3]]"\nUNUSED_RANK="[3]"\n'
FLAGS = '--hetero_configs "[[4,2],[2]]" --layer_partitions "[[2,2],[4]]" --global_bsz_size 5 --chunks 2 \\\n'
FLAGS += '--devices_id "[[[0,0,0,0],[1,1]],[[0,1]]]"\n'

Expect = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("context.sh").write_text(LINES)
    Path("plain.sh").write_text(PLAIN)
    Path("flags.sh").write_text(FLAGS)
    Path("pool.txt").write_text("[[(1,2,1),(1,2,1)],[(1,2,2)]]")
    return tmp_path


@pytest.mark.parametrize("name", ["context.sh", "plain.sh", "flags.sh", "pool.txt"])
def test_a_drawing(name: str, capsys: pytest.CaptureFixture[str], expect: Expect) -> None:
    assert main(["strategy", "show", name, "--layers", "3" if name != "flags.sh" else "4"]) == 0
    expect(f"cli/strategy_{name.split('.')[0]}", capsys.readouterr().out)


SIZED = {
    "pipelines": [
        {"stages": [{"devices": [0], "layers": 1}], "micro_batches": [1, 1]},
        {"stages": [{"devices": [1], "layers": 1}], "micro_batches": [1, 1]},
        {"stages": [{"devices": [2], "layers": 1}], "micro_batches": [3]},
    ],
    "context": [{"pipelines": [0, 1], "lengths": [2, 4]}],
    "sizes": {"tokens": [1, 32768]},
}


def test_sizes_are_drawn_as_a_range_and_shares(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers that mean samples and tokens elsewhere say here how a step is shared out."""
    Path("sized.json").write_text(json.dumps(SIZED))
    assert main(["strategy", "show", "sized.json"]) == 0
    shown = capsys.readouterr().out
    assert "1 layers, schedule 1f1b, sizes 1 to 32,768 tokens a micro-batch" in shown.replace("\n", " ")
    assert "group 0: context-parallel member 0 of 2, share 2 of 6" in shown
    assert shown.count("share of a step 2 of 5") == 2 and "share of a step 3 of 5" in shown
    assert "global batch" not in shown and "micro-batches" not in shown and "2 tokens" not in shown
    assert main(["strategy", "show", "sized.json", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    facts = {row["fact"]: row["value"] for row in said["strategy"]}
    assert facts["sizes"] == "1 to 32,768 tokens a micro-batch" and "global batch" not in facts
    assert [row["share of a step"] for row in said["stages"]] == ["2 of 5", "2 of 5", "3 of 5"]


def test_a_drawing_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strategy", "show", "plain.sh", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert {"strategy", "stages"} <= one.keys()
    assert main(["strategy", "show", "pool.txt", "--layers", "2", "--json", "--schedules"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert list(both) == ["0", "1"]
    assert "schedule 0" in both["1"]


def test_expand_prints_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strategy", "expand", "plain.sh"]) == 0
    said = capsys.readouterr()
    assert read_strategy(said.out) == read_strategy(Path("plain.sh"))
    assert said.err.splitlines() == ["note: read as hspmd-lines"]


def test_expand_writes_what_reads_back_alike(capsys: pytest.CaptureFixture[str]) -> None:
    written = ["-o", "s.yaml", "--reference-json", "r.json", "--family", "gpt", "--zero"]
    assert main(["strategy", "expand", "plain.sh", *written, "--micro-batches", "2"]) == 0
    assert not capsys.readouterr().out
    strategy = read_strategy(Path("s.yaml"))
    form = json.loads(Path("r.json").read_text())
    assert form["zero"] is True
    assert "layernorm1" in form["gpt"]["blocks"]["blocks0"]
    read = read_strategy(Path("r.json"))
    assert [one.stages for one in read.pipelines] == [one.stages for one in strategy.pipelines]
    assert main(["strategy", "expand", "r.json", "--micro-batches", "2", "-o", "t.json"]) == 0
    assert read_strategy(Path("t.json")) == strategy


def test_context_parallelism_is_written_and_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 64 tokens one member has 40; the model has 4 layers, where the lines have 3."""
    Path("four.sh").write_text(LINES.replace("[[1,2],[2,1],[2,1]]", "[[1,3],[2,2],[2,2]]"))
    assert main(["strategy", "expand", "four.sh", "-o", "s.json"]) == 0
    assert json.loads(Path("s.json").read_text())["context"] == [{"pipelines": [1, 2], "lengths": [40, 24]}]
    assert main(["strategy", "show", "s.json"]) == 0
    assert main(["compile", "llama-tiny", "--strategy", "s.json", "-o", "out"]) == 0
    assert main(["inspect", "out"]) == 0
    assert main(["inspect", "out", "--rank", "8"]) == 0
    assert main(["verify", "out"]) == 0


def test_expand_of_several_needs_an_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strategy", "expand", "pool.txt", "--layers", "2"]) == 2
    assert "choose one with --id" in capsys.readouterr().err
    assert main(["strategy", "expand", "pool.txt", "--layers", "2", "--id", "1"]) == 0
    assert read_strategy(capsys.readouterr().out).pipelines[0].stages[1].devices == (2, 3)


def test_numbers_are_at_least_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strategy", "expand", "plain.sh", "--micro-batches", "0", "--layers", "-1"]) == 2
    said = capsys.readouterr().err
    assert "--micro-batches 0: at least 1" in said
    assert "--layers        -1: at least 1" in said


def test_short_texts() -> None:
    assert device_text((0, 1, 2, 3, 5, 8, 9, 7)) == "0-3 5 8 9 7"
    assert sizes_text((4, 4, 4, 2)) == "3 x 4, 2"
    assert wrapped("10-13 20-23 30-33 40-43 50-53") == "10-13 20-23 30-33 40-43\n50-53"
