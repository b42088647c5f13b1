"""ZeRO through real processes over gloo: equal to eager, and state that another strategy goes on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hspmd_compiler as hspmd
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.opening import StartOptions
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.runtime.start.rendezvous import Timeouts
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.verify.equality import check_equal, differences
from hspmd_compiler.verify.training import ShardUpdate
from hspmd_compiler.verify.values import simulate

from .test_end_to_end_gloo import CONFIG, PATIENCE, SEED, train_like_eager
from .test_zero_training import CASES
from .training_cases import STRATEGIES, SUBJECTS

ADAMW = OptimizerConfig(lr=1e-2, weight_decay=0.1)
SGD = CONFIG


def compiled(subject: str, strategy: Strategy, optimizer: OptimizerConfig, to: Path) -> Path:
    made = SUBJECTS[subject]
    program = hspmd.compile(lambda: (made.build(), made.batch(0)), strategy=strategy, optimizer=optimizer)
    program.save(to)
    return to


def started() -> StartOptions:
    return StartOptions(seed=SEED, timeouts=Timeouts(PATIENCE, PATIENCE))


@pytest.mark.parametrize(
    ("subject", "case", "zero"),
    [pytest.param("gpt2", "dp2-pp2", 3, marks=pytest.mark.slow), ("llama", "mixed", 2)],
)
def test_processes_train_like_eager(subject: str, case: str, zero: int, tmp_path: Path) -> None:
    """Losses, the norm that gradients are clipped by, gradients and parameters."""
    train_like_eager(subject, compiled(subject, replace(CASES[case], zero=zero), SGD, tmp_path / "artifact"))


def test_bfloat16_trains_in_processes(tmp_path: Path) -> None:
    """Every collective takes the type, and losses are those of all ranks in one process."""
    made = SUBJECTS["llama"]
    program = hspmd.compile(
        lambda: (made.build(), made.batch(0)),
        strategy=replace(CASES["mixed"], zero=2),
        optimizer=SGD,
        precision="bfloat16",
    )
    program.save(tmp_path / "artifact")

    def job(engine: Engine, emit: Emit) -> None:
        state = engine.state_dict()
        if engine.rank == 0:
            torch.save(state, tmp_path / "state.pt")
        emit({"loss": engine.step(made.batch(0))})
        emit({"loss": engine.step(made.batch(1))})
        assert all(value.dtype == torch.float32 for value in engine.state_dict().values())

    records: list[dict[str, object]] = []
    launch(tmp_path / "artifact", job, started(), on_record=lambda record: records.append(dict(record)))
    state = torch.load(tmp_path / "state.pt")
    for name, value in made.build().named_buffers():
        state.setdefault(name, value)
    alike = simulate(program.artifact.program, state, [made.batch(0), made.batch(1)], ShardUpdate(SGD))
    assert [record["loss"] for record in records] == pytest.approx(alike.losses, rel=1e-3)


def weighted(strategy: Strategy, zero: int, weights: list[tuple[int, ...]]) -> Strategy:
    """The strategy of one stage a pipeline, with weights of its devices for what ZeRO stores once."""
    pipelines = tuple(
        replace(each, stages=(replace(each.stages[0], zero_shares=own),))
        for each, own in zip(strategy.pipelines, weights, strict=True)
    )
    return replace(strategy, pipelines=pipelines, zero=zero)


def test_state_goes_on_under_another_strategy(tmp_path: Path) -> None:
    """Two AdamW steps under ZeRO-3 on two pipelines, a third under ZeRO-1 on three tensor-parallel ranks.

    By unequal weights on both sides: what one device stored, others go on with.
    """
    batch = SUBJECTS["mlp-ce"].batch
    strategies = (weighted(CASES["dp2"], 3, [(3,), (1,)]), weighted(STRATEGIES["tp3"], 1, [(0, 2, 1)]))
    first, second = (
        compiled("mlp-ce", strategy, ADAMW, tmp_path / name)
        for name, strategy in zip(("first", "second"), strategies, strict=True)
    )

    def begin(engine: Engine, emit: Emit) -> None:
        for step in range(2):
            engine.step(batch(step))
        held = {"params": engine.state_dict(), "moments": engine.optimizer_state_dict()}
        engine.step(batch(2))
        after = engine.state_dict()
        if engine.rank == 0:
            torch.save(held | {"after": after}, tmp_path / "held.pt")

    def go_on(engine: Engine, emit: Emit) -> None:
        held: dict[str, Any] = torch.load(tmp_path / "held.pt")
        engine.load_state_dict(held["params"])
        engine.load_optimizer_state_dict(held["moments"], steps=2)
        again = engine.optimizer_state_dict()
        engine.step(batch(2))
        after = engine.state_dict()
        if engine.rank == 0:
            torch.save({"after": after, "moments": again}, tmp_path / "went_on.pt")

    launch(first, begin, started())
    launch(second, go_on, started())
    held, went_on = torch.load(tmp_path / "held.pt"), torch.load(tmp_path / "went_on.pt")
    for moment, wholes in held["moments"].items():
        assert wholes.keys() == went_on["moments"][moment].keys()
        assert all(value.equal(went_on["moments"][moment][name]) for name, value in wholes.items())
    check_equal(differences(went_on["after"], held["after"], ADAMW.lr), 1e-5, "parameters of the third step")
