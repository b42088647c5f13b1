"""Switches while real processes train over gloo: state to the bit, and the curve of who never switched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.verify.eager import eager_step
from hspmd_compiler.verify.equality import check_equal, differences, loss_difference

from ..training.training_cases import SUBJECTS
from .switch_cases import SEED, TWO, UNEVEN, WIDE, bundled, check_switch, options

ADAMW = OptimizerConfig(lr=1e-2, weight_decay=0.1, max_grad_norm=0.5)
THREE = {"wide": WIDE, "uneven": UNEVEN, "two": TWO}
ROUTE = ("uneven", "two", "wide", "two", "uneven", "wide")
"""Each switch of the three once, begun with `wide`."""
EXACT = 1e-10


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


def compare(subject: str, records: list[dict[str, object]], kept: Path, config: OptimizerConfig) -> None:
    """With one device in float64: losses, norms, parameters and moments."""
    torch.manual_seed(SEED)
    model = SUBJECTS[subject].build().double()
    trainer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    for step, record in enumerate(records):
        result = eager_step(model, batch_of(subject, step), widen=False, step=step, seed=SEED)
        assert config.max_grad_norm is not None
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm))
        for name, wanted in (("loss", result.loss), ("norm", norm)):
            check_equal([loss_difference(float(str(record[name])), wanted)], EXACT, name)
        trainer.step()
    state, moments = torch.load(kept / "state.pt")
    final = {name: value.detach() for name, value in model.state_dict().items()}
    check_equal(differences(state, final, config.lr), EXACT, "parameters")
    for moment in ("exp_avg", "exp_avg_sq"):
        own = {name: trainer.state[value][moment] for name, value in model.named_parameters()}
        found = {name: moments[moment][name] for name in own}
        check_equal(
            differences(found, own, float(max(each.abs().max() for each in own.values()))), EXACT, moment
        )


def test_a_run_that_switches_is_one_that_never_did(tmp_path: Path) -> None:
    """Three strategies of four, three and two processes, ZeRO 1 to 3: there and back over each switch."""

    def factory() -> tuple[torch.nn.Module, dict[str, Tensor]]:
        return SUBJECTS["mlp-mse"].build().double(), batch_of("mlp-mse", 0)

    directory = bundled(tmp_path / "bundle", factory, THREE, ADAMW)
    records: list[dict[str, object]] = []
    job = train_by(ROUTE, "mlp-mse", tmp_path)
    launch(directory, job, options("wide"), on_record=lambda record: records.append(dict(record)))
    assert len(records) == 1 + len(ROUTE)
    compare("mlp-mse", records, tmp_path, ADAMW)
