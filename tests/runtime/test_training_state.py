"""Training goes on from a file as if it had never stopped, also under another strategy; damage is noticed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import hspmd_compiler as hspmd
from hspmd_compiler.errors import RunError
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.runtime.batches.data import FactoryData, read_position
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.saved.progress import Progress
from hspmd_compiler.runtime.saved.safetensors_file import STATE_KEY as KEY
from hspmd_compiler.runtime.saved.training_state import load_state, save_state
from hspmd_compiler.runtime.saved.weights_file import save
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.opening import StartOptions
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.runtime.start.rendezvous import Timeouts
from hspmd_compiler.runtime.train import train
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.verify.equality import check_equal, differences

from ..training.test_end_to_end_gloo import PATIENCE
from ..training.test_zero_training import CASES
from ..training.training_cases import ALL, BATCH, STRATEGIES, SUBJECTS

ADAMW = OptimizerConfig(lr=1e-2, weight_decay=0.1)
STEADY = replace(ADAMW, eps=1e-5)
"""The gradient of a bias of keys is zero but for rounding, of which AdamW's own eps would make steps."""
SEED, STEPS = 5, 4


def batches(subject: str, epoch: int) -> Iterator[dict[str, Tensor]]:
    """Three batches an epoch, other ones in each."""
    return (SUBJECTS[subject].batch(3 * epoch + step) for step in range(3))


def data_for(engine: Engine, subject: str) -> FactoryData:
    def factory(epoch: int) -> Iterator[dict[str, Tensor]]:
        return batches(subject, epoch)

    return FactoryData(factory, engine.shape, seed=SEED)


def compiled(subject: str, strategy: Strategy, to: Path, optimizer: OptimizerConfig = ADAMW) -> Path:
    made = SUBJECTS[subject]
    program = hspmd.compile(lambda: (made.build(), made.batch(0)), strategy=strategy, optimizer=optimizer)
    program.save(to)
    return to


@contextmanager
def opened(directory: Path) -> Iterator[Engine]:
    """The only rank of an artifact, in this process."""
    engine = hspmd.load(directory)
    try:
        yield engine
    finally:
        engine.transport.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of one rank, and its state after some steps."""
    made = tmp_path_factory.mktemp("state")
    with opened(compiled("mlp-ce", STRATEGIES["one"], made / "one")) as engine:
        data = data_for(engine, "mlp-ce")
        train(engine, data, steps=STEPS)
        save_state(engine, data, made / "state.safetensors")
        save(engine, made / "weights.safetensors")
    return made


def test_going_on_changes_no_bit(folder: Path) -> None:
    """In the middle of the second epoch, with AdamW's moments and count of steps."""
    with opened(folder / "one") as engine:
        train(engine, data_for(engine, "mlp-ce"), steps=STEPS + 3)
        wanted = engine.state_dict()
    with opened(folder / "one") as engine:
        data = data_for(engine, "mlp-ce")
        load_state(engine, data, folder / "state.safetensors")
        assert (engine.steps, data.epoch) == (STEPS, 1)
        train(engine, data, steps=3)
        found = engine.state_dict()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def refused(directory: Path, state: Path) -> str:
    """Why an artifact can't go on from a file."""
    with opened(directory) as engine, pytest.raises(RunError) as caught:
        load_state(engine, data_for(engine, "mlp-ce"), state)
    return str(caught.value)


def test_the_file_is_read_by_others(folder: Path) -> None:
    """Whole tensors by the model's names, moments beside them, and the rest as texts."""
    with safe_open(str(folder / "state.safetensors"), framework="pt") as file:  # type: ignore[no-untyped-call]
        names = set(file.keys())
        assert {"head.weight", "optimizer.exp_avg/head.weight", "optimizer.exp_avg_sq/scale"} <= names
        assert file.get_tensor("optimizer.exp_avg/head.weight").abs().max() > 0
        assert '"steps": 4' in file.metadata()[KEY]


@pytest.mark.parametrize("at", [40, -3])
def test_damage_is_noticed(folder: Path, tmp_path: Path, at: int) -> None:
    """A changed byte, of the header or of a tensor."""
    content = bytearray((folder / "state.safetensors").read_bytes())
    at = content.index(b'steps\\": 4') + len('steps\\": ') if at > 0 else len(content) + at
    content[at] = ord("3") if content[at] == ord("4") else content[at] ^ 1
    (tmp_path / "damaged.safetensors").write_bytes(content)
    text = refused(folder / "one", tmp_path / "damaged.safetensors")
    assert "its content doesn't match its hash" in text


def test_weights_alone_are_no_state(folder: Path) -> None:
    text = refused(folder / "one", folder / "weights.safetensors")
    assert "holds no state of training" in text and "weights go to --init" in text


def test_what_does_not_fit_is_told_at_once(folder: Path, tmp_path: Path) -> None:
    half = Strategy((PipelineSpec((StageSpec((0,), ALL),), (BATCH // 2,)),))
    sgd = OptimizerConfig(OptimizerName.SGD, lr=0.1)
    text = refused(compiled("mlp-ce", half, tmp_path / "half", sgd), folder / "state.safetensors")
    assert "adamw in the file, sgd here" in text and "10 in the file, 5 here" in text
    assert "optimizer.exp_avg/head.weight" in text and "keeps no such moment" in text


def test_moments_that_steps_must_have_left_are_missed(folder: Path, tmp_path: Path) -> None:
    """Momentum that begins at zero in mid-training would be another optimizer's."""
    plain, heavy = (OptimizerConfig(OptimizerName.SGD, lr=0.1, momentum=momentum) for momentum in (0.0, 0.9))
    with opened(compiled("mlp-ce", STRATEGIES["one"], tmp_path / "plain", plain)) as engine:
        data = data_for(engine, "mlp-ce")
        save_state(engine, data, tmp_path / "new.safetensors")
        train(engine, data, steps=1)
        save_state(engine, data, tmp_path / "old.safetensors")
    directory = compiled("mlp-ce", STRATEGIES["one"], tmp_path / "heavy", heavy)
    text = refused(directory, tmp_path / "old.safetensors")
    assert re.search(r"optimizer.momentum_buffer/head.weight +missing", text)
    with opened(directory) as engine:
        load_state(engine, data_for(engine, "mlp-ce"), tmp_path / "new.safetensors")


class Drawn:
    """Batches in a drawn order; its own state has tuples."""

    def __init__(self) -> None:
        self.random = Random(1)

    def __iter__(self) -> Drawn:
        return self

    def __next__(self) -> dict[str, Tensor]:
        return SUBJECTS["mlp-ce"].batch(self.random.randrange(100))

    def state_dict(self) -> dict[str, object]:
        return {"random": self.random.getstate()}

    def load_state_dict(self, state: dict[str, tuple[object, ...]]) -> None:
        self.random.setstate(state["random"])


def test_an_iterator_whose_state_json_would_change_skips_batches(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "drawn.safetensors"
    with opened(folder / "one") as engine:
        data = FactoryData(Drawn, engine.shape)
        train(engine, data, steps=2)
        save_state(engine, data, state)
        train(engine, data, steps=1)
        wanted = engine.state_dict()
    with opened(folder / "one") as engine:
        data = FactoryData(Drawn, engine.shape)
        load_state(engine, data, state)
        train(engine, data, steps=1)
        found = engine.state_dict()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


@pytest.mark.parametrize(("field", "value"), [("steps", -1), ("steps", 10**30), ("seed", 10**30)])
def test_numbers_out_of_range(field: str, value: int) -> None:
    fields = {"version": 1, "steps": 0, "seed": 0, "batch": 1, "optimizer": "adamw", "data": {}}
    state = {"state": {"inc": 1 << 127}}  # as numpy's generators have it
    assert Progress.read(json.dumps(fields | {"data": state})).data == state
    with pytest.raises(ValueError, match=rf"{field}: (an integer of at least 0|.*at most 63 bits)"):
        Progress.read(json.dumps(fields | {field: value}))


@pytest.mark.parametrize("field", ["epoch", "batches"])
@pytest.mark.parametrize("value", [-1, True])
def test_a_position_in_the_data_is_counted(field: str, value: int) -> None:
    with pytest.raises(RunError, match="not the state of a data iterator"):
        read_position({"epoch": 0, "batches": 0, "seed": 0, field: value})


def test_another_strategy_goes_on(tmp_path: Path) -> None:
    """From ZeRO-3 on two pipelines to ZeRO-1 on three tensor-parallel ranks, with the same dropout masks."""
    subject = "gpt2-dropout"
    first = compiled(subject, replace(CASES["dp2"], zero=3), tmp_path / "first", STEADY)
    second = compiled(subject, replace(STRATEGIES["tp3"], zero=1), tmp_path / "second", STEADY)
    state = tmp_path / "state.safetensors"

    def begin(engine: Engine, emit: Emit) -> None:
        data = data_for(engine, subject)
        train(engine, data, steps=STEPS)
        save_state(engine, data, state)
        losses: list[float] = []
        train(engine, data, steps=2, on_step=lambda record: losses.append(record.loss))
        after = engine.state_dict()
        if engine.rank == 0:
            torch.save({"after": after, "losses": losses}, tmp_path / "wanted.pt")

    def go_on(engine: Engine, emit: Emit) -> None:
        data = data_for(engine, subject)
        load_state(engine, data, state)
        assert (engine.steps, engine.seed) == (STEPS, SEED)
        losses: list[float] = []
        train(engine, data, steps=2, on_step=lambda record: losses.append(record.loss))
        wanted = torch.load(tmp_path / "wanted.pt")
        assert losses == pytest.approx(wanted["losses"], rel=1e-5)
        check_equal(differences(engine.state_dict(), wanted["after"], ADAMW.lr), 1e-4, "parameters")

    patience = Timeouts(PATIENCE, PATIENCE)
    launch(first, begin, StartOptions(seed=SEED, timeouts=patience))
    launch(second, go_on, StartOptions(seed=0, timeouts=patience))
