"""A checkpoint holds each element once, and every strategy goes on from it, bit for bit."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy
import pytest
import torch
from safetensors import safe_open

from hspmd_compiler.errors import RunError
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.program.program import Program
from hspmd_compiler.program.switch_plan import VALUE
from hspmd_compiler.runtime.saved.checkpoint.load import load_checkpoint, load_newest, newest
from hspmd_compiler.runtime.saved.checkpoint.reader import CheckpointReader

from ...training.test_precision import narrow
from ...training.test_zero_training import CASES
from ...training.training_cases import STRATEGIES, graph_of, program_for
from .drawn_ranks import ThreadRanks, assert_same_state, wholes_of

ADAMW = OptimizerConfig()
EVERY = STRATEGIES | CASES
STEP = 6
PAIRS = [
    ("gpt2", "dp2", 3, "tp3", 0),  # a fused, tied model: views of the whole are unlike
    ("gpt2", "tp3", 2, "dp2-pp2", 3),
    ("llama", "mixed", 1, "tp41", 0),
    ("llama", "empty", 0, "mixed", 3),
    ("gpt2", "sp", 3, "one", 0),
    ("mlp-ce", "one", 0, "three", 2),
]


@cache
def program(subject: str, strategy: str, zero: int) -> Program:
    return program_for(graph_of(subject), replace(EVERY[strategy], zero=zero))


def saved(directory: Path, made: Program, config: OptimizerConfig = ADAMW) -> Path:
    """A checkpoint of drawn values after STEP steps."""
    (told,) = ThreadRanks(made, config, 1, STEP).save(directory)
    assert (told.step, told.problem) == (STEP, "")
    return directory / f"step-{STEP:08d}"


def go_on(made: Program, folder: Path, config: OptimizerConfig = ADAMW) -> ThreadRanks:
    """Ranks that began with zeros, after they have read it."""
    ranks = ThreadRanks(made, config, None)
    ranks.all(lambda engine, data: load_checkpoint(engine, data, folder))
    assert {engine.steps for engine in ranks.engines} == {STEP}
    return ranks


@pytest.mark.parametrize(("subject", "first", "zero", "second", "other_zero"), PAIRS)
def test_another_strategy_goes_on(
    tmp_path: Path, subject: str, first: str, zero: int, second: str, other_zero: int
) -> None:
    folder = saved(tmp_path, program(subject, first, zero))
    made = program(subject, second, other_zero)
    assert_same_state(go_on(made, folder), ThreadRanks(made, ADAMW, 1, STEP))


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_masters_are_kept_where_segments_read_copies(tmp_path: Path, zero: int) -> None:
    """bfloat16 computes: what is saved and read is what is trained."""
    folder = saved(tmp_path, narrow("mlp-ce", replace(EVERY["dp2"], zero=zero)))
    made = narrow("mlp-ce", replace(EVERY["tp3"], zero=3 - zero))
    assert_same_state(go_on(made, folder), ThreadRanks(made, ADAMW, 1, STEP))


@pytest.mark.parametrize(("strategy", "zero"), [("dp3", 3), ("tp41", 0), ("dp2", 1)])
def test_each_element_is_written_once(tmp_path: Path, strategy: str, zero: int) -> None:
    made = program("mlp-ce", strategy, zero)
    folder = saved(tmp_path, made)
    sizes: dict[str, int] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(str(path), framework="pt") as file:  # type: ignore[no-untyped-call]
            for name in file.keys():  # noqa: SIM118
                sizes[name] = sizes.get(name, 0) + file.get_tensor(name).numel()
    wholes = wholes_of(made, 1)
    moments = ("exp_avg", "exp_avg_sq")
    assert sizes == {name: whole.numel() for name, whole in wholes.items()} | {
        f"optimizer.{moment}/{name}": whole.numel() for moment in moments for name, whole in wholes.items()
    }


def test_the_index_tells_of_every_file(tmp_path: Path) -> None:
    """Its hashes are those that `sha256sum` prints."""
    folder = saved(tmp_path, program("mlp-ce", "dp2", 3))
    index = json.loads((folder / "index.json").read_text())
    assert sorted(index["files"]) == ["rank-0000.safetensors", "rank-0001.safetensors"]
    for name, entry in index["files"].items():
        content = (folder / name).read_bytes()
        assert entry == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert {path.name for path in folder.iterdir()} == {"index.json", *index["files"]}
    assert index["progress"]["steps"] == STEP and index["lr"] == ADAMW.lr
    assert index["optimizer"]["name"] == "adamw"


def test_where_training_stands_comes_back(tmp_path: Path) -> None:
    """Seed, rate, place in the data, and what generators draw next."""
    made = program("mlp-ce", "dp2", 0)
    ranks = ThreadRanks(made, ADAMW, 1, STEP)
    for engine, data in zip(ranks.engines, ranks.data, strict=True):
        engine.seed, engine.lr, data.at = 77, 0.25, 12
    torch.manual_seed(5), numpy.random.seed(6), random.seed(7)
    numpy.random.normal(), random.gauss(0, 1)  # each keeps a second one
    ranks.save(tmp_path)
    wanted = drawn()
    again = go_on(made, tmp_path / f"step-{STEP:08d}")
    assert {(engine.seed, engine.lr) for engine in again.engines} == {(77, 0.25)}
    assert {data.at for data in again.data} == {12}
    assert drawn() == wanted


def drawn() -> tuple[float, ...]:
    return (
        float(torch.rand(())),
        float(torch.randn(())),
        float(numpy.random.normal()),
        float(numpy.random.random()),
        random.gauss(0, 1),
        random.random(),
    )


def test_a_moment_that_no_step_has_made_is_zero(tmp_path: Path) -> None:
    """As torch begins it; a parameter that is trained has all its moments in a checkpoint."""
    made = program("mlp-ce", "dp2", 1)
    ranks = ThreadRanks(made, ADAMW, 1, STEP)
    for engine in ranks.engines:
        engine.optimizer.state.pop("head.bias", None)
    ranks.save(tmp_path)
    again = go_on(made, tmp_path / f"step-{STEP:08d}")
    for engine in again.engines:
        assert not any(bool(held.any()) for held in engine.optimizer.state["head.bias"].values())


def test_what_does_not_fit_is_told_at_once(tmp_path: Path) -> None:
    folder = saved(tmp_path, program("mlp-ce", "dp2", 0))
    with pytest.raises(RunError, match="of another model") as caught:
        go_on(program("gpt2", "dp2", 0), folder)
    assert len(caught.value.details) > 5
    with pytest.raises(RunError, match="adamw in the file, sgd here"):
        go_on(program("mlp-ce", "one", 0), folder, OptimizerConfig(OptimizerName.SGD))


def test_pieces_are_read_one_by_one(tmp_path: Path) -> None:
    """As a run that lost their holder takes them, by any view and box."""
    made = program("gpt2", "tp3", 2)
    reader = CheckpointReader(saved(tmp_path, made))
    name, wholes = "transformer.h.0.attn.c_attn.weight", wholes_of(made, 1)
    rows, columns = wholes[name].shape
    view = (rows, 3, columns // 3)
    box = ((2, rows - 1), (1, 3), (4, 9))
    wanted = wholes[name].view(view)[2:-1, 1:3, 4:9]
    assert torch.equal(reader.read_box(name, VALUE, view, box), wanted)
    assert reader.holds("exp_avg", name) and not reader.holds("momentum_buffer", name)
    assert not torch.equal(reader.read_box(name, "exp_avg", view, box), wanted)
    assert reader.steps == STEP


def damage(folder: Path, name: str = "rank-0001.safetensors", at: int = -3) -> None:
    content = bytearray((folder / name).read_bytes())
    content[at] ^= 1
    (folder / name).write_bytes(content)


@pytest.mark.parametrize("name", ["rank-0001.safetensors", "index.json"])
def test_the_one_before_stands_in_for_a_damaged_one(tmp_path: Path, name: str) -> None:
    made = program("mlp-ce", "dp2", 3)
    early, late = (ThreadRanks(made, ADAMW, seed, steps) for seed, steps in ((1, 2), (2, STEP)))
    early.save(tmp_path), late.save(tmp_path)
    assert newest(tmp_path) == newest(tmp_path, most_steps=6) == tmp_path / "step-00000006"
    assert (
        newest(tmp_path, most_steps=5) == tmp_path / "step-00000002"
        and newest(tmp_path, most_steps=1) is None
    )
    damage(tmp_path / "step-00000006", name, 2000)
    told: list[tuple[Path, str]] = []
    assert newest(tmp_path, lambda *each: told.append(each)) == tmp_path / "step-00000002"
    ((folder, reason),) = told
    assert folder.name == "step-00000006" and name in reason and "doesn't match its hash" in reason
    other = program("mlp-ce", "tp3", 0)
    ranks, heard = ThreadRanks(other, ADAMW, None), []
    found = ranks.all(
        lambda engine, data: load_newest(engine, data, tmp_path, lambda *each: heard.append(each))
    )
    assert set(found) == {tmp_path / "step-00000002"}
    assert len(heard) == other.world_size and all(folder.name == "step-00000006" for folder, _ in heard)
    assert_same_state(ranks, ThreadRanks(other, ADAMW, 1, 2))


@pytest.mark.parametrize("gone", ["rank-0001.safetensors", "index.json"])
def test_a_missing_file_is_named(tmp_path: Path, gone: str) -> None:
    made = program("mlp-ce", "dp2", 3)
    folder = saved(tmp_path, made)
    (folder / gone).unlink()
    with pytest.raises(RunError, match=rf"step-00000006.*{gone}"):
        ranks = ThreadRanks(made, ADAMW, None)
        ranks.all(lambda engine, data: load_newest(engine, data, tmp_path))
    with pytest.raises(RunError, match=gone):
        go_on(made, folder)


@pytest.mark.parametrize("name", ["", "none"])
def test_a_folder_without_any(tmp_path: Path, name: str) -> None:
    ranks, directory = ThreadRanks(program("mlp-ce", "dp2", 0), ADAMW, None), tmp_path / name
    assert ranks.all(lambda engine, data: load_newest(engine, data, directory)) == [None, None]
    assert newest(directory) is None
