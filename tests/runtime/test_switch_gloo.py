"""Switches while real processes train over gloo: state to the bit, and the curve of who never switched."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest
import torch
from torch import Tensor

from hspmd_compiler.coverage.convolutional_models import ResNet
from hspmd_compiler.errors import HspmdError, RankLost, RunError
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.start import opening
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.runtime.start.rendezvous import RankPlace
from hspmd_compiler.runtime.start.same_start import unlike
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.verify.eager import eager_step
from hspmd_compiler.verify.equality import check_equal, differences, loss_difference

from ..operators.test_batch_norm import images
from ..training.training_cases import SUBJECTS
from .switch_cases import SEED, TWO, UNEVEN, WIDE, bundled, check_switch, options

ADAMW = OptimizerConfig(lr=1e-2, weight_decay=0.1, max_grad_norm=0.5)
MOMENTUM = OptimizerConfig(name=OptimizerName.SGD, lr=0.1, momentum=0.9, max_grad_norm=0.5)
"""Of a gradient that is zero but for rounding, as that of a key's bias, AdamW makes a full step."""
THREE = {"wide": WIDE, "uneven": UNEVEN, "two": TWO}
ROUTE = ("uneven", "two", "wide", "two", "uneven", "wide")
"""Each switch of the three once, begun with `wide`."""
EXACT, LOSS_IN_FLOAT32 = 1e-10, 1e-5


def batch_of(subject: str, step: int) -> dict[str, Tensor]:
    made = SUBJECTS[subject].batch(step)
    return {key: value.double() if value.is_floating_point() else value for key, value in made.items()}


def train_by(route: tuple[str, ...], subject: str, kept: Path) -> Callable[[Engine, Emit], None]:
    """A step, then a switch and a step for each strategy; rank 0 keeps what comes of it."""

    def job(engine: Engine, emit: Emit) -> None:
        for step, name in enumerate((engine.strategy, *route)):
            if name != engine.strategy:
                check_switch(engine, name)
            emit({"loss": engine.step(batch_of(subject, step)), "norm": engine.grad_norm})
            assert engine.active.is_idle == (not engine.rows)
        state, moments = engine.state_dict(), engine.optimizer_state_dict()
        if engine.rank == 0:
            torch.save((state, moments), kept / "state.pt")

    return job


def compare(
    subject: str, records: list[dict[str, object]], kept: Path, config: OptimizerConfig, tolerance: float
) -> None:
    """With one device in float64: losses, norms, parameters and moments."""
    torch.manual_seed(SEED)
    model = SUBJECTS[subject].build().double()
    trainer = trainer_of(model, config)
    for step, record in enumerate(records):
        result = eager_step(model, batch_of(subject, step), widen=False, step=step, seed=SEED)
        assert config.max_grad_norm is not None
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm))
        for name, wanted in (("loss", result.loss), ("norm", norm)):
            check_equal([loss_difference(float(str(record[name])), wanted)], tolerance, name)
        trainer.step()
    state, moments = torch.load(kept / "state.pt")
    final = {name: value.detach() for name, value in model.state_dict().items()}
    check_equal(differences(state, final, config.lr), tolerance, "parameters")
    for moment, found in moments.items():
        own = {name: trainer.state[value][moment] for name, value in model.named_parameters()}
        floor = float(max(each.abs().max() for each in own.values()))
        check_equal(differences({name: found[name] for name in own}, own, floor), tolerance, moment)


def trainer_of(model: torch.nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    if config.name is OptimizerName.ADAMW:
        return torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    return torch.optim.SGD(model.parameters(), lr=config.lr, momentum=config.momentum)


def test_a_run_that_switches_is_one_that_never_did(tmp_path: Path) -> None:
    """Three strategies of four, three and two processes, ZeRO 1 to 3: there and back over each switch."""

    def factory() -> tuple[torch.nn.Module, dict[str, Tensor]]:
        return SUBJECTS["mlp-mse"].build().double(), batch_of("mlp-mse", 0)

    directory = bundled(tmp_path / "bundle", factory, THREE, ADAMW)
    records: list[dict[str, object]] = []
    job = train_by(ROUTE, "mlp-mse", tmp_path)
    launch(directory, job, options("wide"), on_record=lambda record: records.append(dict(record)))
    assert len(records) == 1 + len(ROUTE)
    compare("mlp-mse", records, tmp_path, ADAMW, EXACT)


def mlp() -> tuple[torch.nn.Module, dict[str, Tensor]]:
    return SUBJECTS["mlp-ce"].build(), SUBJECTS["mlp-ce"].batch(0)


SGD = OptimizerConfig(name=OptimizerName.SGD, lr=0.1)
PAIR = {"three": UNEVEN, "two": TWO}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two strategies of processes 0, 1, 3 and 1, 2; with a plan of one switch only."""
    return bundled(tmp_path_factory.mktemp("pair") / "bundle", mlp, PAIR, SGD, [("three", "two")])


def test_mistakes_move_nothing(pair: Path, expect: Callable[[str, str], None]) -> None:
    """An unknown name, and a switch without a plan, are told on every rank, and the run can go on."""

    def refused(engine: Engine, name: str) -> str:
        with pytest.raises(HspmdError) as caught:
            engine.switch_to(name)
        return str(caught.value)

    def job(engine: Engine, emit: Emit) -> None:
        assert engine.strategies == ("three", "two") and engine.switch_to("three").moved_bytes == 0
        texts = [refused(engine, "four")]
        check_switch(engine, "two")  # before the first step there are no moments
        loss = engine.step(SUBJECTS["mlp-ce"].batch(0))
        texts.append(refused(engine, "three"))
        assert len({str(value) for value in engine.transport.gather_objects((texts, loss))}) == 1
        emit({"texts": texts})

    records: list[dict[str, list[str]]] = []
    launch(pair, job, options(), on_record=lambda record: records.append(dict(record)))  # type: ignore[arg-type]
    expect("run/switches_refused", "\n\n".join(records[0]["texts"]))


def test_ranks_that_begin_with_other_strategies_are_told(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would make groups in an order of its own, and wait for the others."""
    told: dict[int, Mapping[str, str]] = {}

    def connect(place: RankPlace, programs: object, same: Mapping[str, str], timeouts: object) -> None:
        told[place.rank] = same
        raise RunError("it has been told")

    monkeypatch.setattr(opening, "connect", connect)
    for rank, name in ((0, None), (1, "three"), (2, "two")):
        with pytest.raises(RunError, match="it has been told"):
            opening.open_engine(pair, opening.StartOptions(strategy=name), RankPlace(rank, 4, rank))
    assert unlike(told) == [("first strategy", "rank 0-1: three; rank 2: two")]


@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_rank_that_dies_in_a_switch_ends_the_run_and_is_named(pair: Path, victim: int) -> None:
    """Also one that only the next strategy uses; the others hear of it at once."""

    def job(engine: Engine, emit: Emit) -> None:
        engine.step(SUBJECTS["mlp-ce"].batch(0))
        if engine.rank == victim:
            engine.transport.swap_runs = lambda *rows: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        engine.switch_to("two")
        emit({"reached": True})

    records: list[object] = []
    start = monotonic()
    with pytest.raises(RankLost, match=rf"rank {victim} \(pid \d+\) died with signal 9 \(SIGKILL\)"):
        launch(pair, job, options(), on_record=records.append)
    assert not records and monotonic() - start < 20


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["model", "bfloat16"])
def test_tied_weights_and_dropout_switch_too(zero: int, precision: str, tmp_path: Path) -> None:
    """Masters and copies, embeddings in two stages, masks by seed and step."""
    strategies = {
        "wide": replace(WIDE, zero=zero),
        "uneven": replace(UNEVEN, zero=3 - zero),
        "two": replace(TWO, zero=(zero + 2) % 4),
    }
    double = precision == "model"

    def factory() -> tuple[torch.nn.Module, dict[str, Tensor]]:
        model = SUBJECTS["gpt2-dropout"].build()
        return model.double() if double else model, batch_of("gpt2-dropout", 0)

    directory = bundled(tmp_path / "bundle", factory, strategies, MOMENTUM, precision=precision)
    records: list[dict[str, object]] = []
    job = train_by(ROUTE, "gpt2-dropout", tmp_path)
    launch(directory, job, options("wide"), on_record=lambda record: records.append(dict(record)))
    assert len(records) == 1 + len(ROUTE)
    if double:
        compare("gpt2-dropout", records, tmp_path, MOMENTUM, LOSS_IN_FLOAT32)


@pytest.mark.slow
def test_running_statistics_switch_too(tmp_path: Path) -> None:
    """Buffers that a step updates, with those of no dimension, and momentum."""
    config = OptimizerConfig(name=OptimizerName.SGD, lr=0.05, momentum=0.9)
    strategies = {
        "three": Strategy((P((S((0, 1, 3), (0, 3)),), (5,)),), zero=1),
        "two": Strategy((P((S((1,), (0, 3)),), (1,)), P((S((2,), (0, 3)),), (4,)))),
    }
    directory = bundled(tmp_path / "bundle", lambda: (ResNet(), images(0)), strategies, config)

    def job(engine: Engine, emit: Emit) -> None:
        for step, name in enumerate(("three", "two", "three")):
            if step:
                check_switch(engine, name)
            emit({"loss": engine.step(images(step))})
        state = engine.state_dict()
        if engine.rank == 0:
            torch.save(state, tmp_path / "state.pt")

    records: list[dict[str, object]] = []
    launch(directory, job, options(), on_record=lambda record: records.append(dict(record)))
    torch.manual_seed(SEED)
    model = ResNet()
    trainer = trainer_of(model, config)
    for step, record in enumerate(records):
        result = eager_step(model, images(step), widen=False, step=step, seed=SEED)
        check_equal([loss_difference(float(str(record["loss"])), result.loss)], 1e-5, "loss")
        trainer.step()
    state = torch.load(tmp_path / "state.pt")
    final = {name: value.detach() for name, value in model.state_dict().items()}
    assert any(value.dim() == 0 for value in state.values())
    check_equal(differences(state, final, config.lr), 1e-4, "state")
