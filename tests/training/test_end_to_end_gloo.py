"""Compiled artifacts trained by real processes over gloo, against eager PyTorch on the whole batch."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch

import hspmd_compiler as hspmd
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.opening import StartOptions
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.runtime.start.rendezvous import Timeouts
from hspmd_compiler.verify.eager import eager_step
from hspmd_compiler.verify.equality import check_equal, differences, gradient_floor, loss_difference

from .training_cases import STRATEGIES, SUBJECTS

STEPS = 3
SEED = 3
TOLERANCE = 1e-5
CONFIG = OptimizerConfig(name=OptimizerName.SGD, lr=0.1, max_grad_norm=0.5)
PATIENCE = timedelta(seconds=60)


@pytest.mark.parametrize(
    ("subject", "strategy"),
    [
        ("llama", "mixed"),
        pytest.param("llama", "heads3111", marks=pytest.mark.slow),
        pytest.param("llama", "sp", marks=pytest.mark.slow),
        pytest.param("gpt2", "pp", marks=pytest.mark.slow),
        pytest.param("gpt2", "empty", marks=pytest.mark.slow),
        ("gpt2-dropout", "tp32"),
        pytest.param("llama-kv1", "tp32", marks=pytest.mark.slow),
        ("mlp-ce", "accumulation"),
        pytest.param("mlp-mse", "micro", marks=pytest.mark.slow),
    ],
)
def test_processes_train_like_eager(subject: str, strategy: str, tmp_path: Path) -> None:
    made = SUBJECTS[subject]
    program = hspmd.compile(
        lambda: (made.build(), made.batch(0)), strategy=STRATEGIES[strategy], optimizer=CONFIG
    )
    program.save(tmp_path / "artifact")

    train_like_eager(subject, tmp_path / "artifact")


def train_like_eager(subject: str, directory: Path) -> None:
    """Train an artifact in its processes, and compare with eager; leaves two files beside it."""
    made, kept = SUBJECTS[subject], directory.parent

    def job(engine: Engine, emit: Emit) -> None:
        for step in range(STEPS):
            emit({"loss": engine.step(made.batch(step)), "norm": engine.grad_norm})
            if step == 0:
                grads = engine.grads()
        if engine.rank == 0:
            torch.save(grads, kept / "grads.pt")
        state = engine.state_dict()
        if engine.rank == engine.program.world_size - 1:
            torch.save(state, kept / "state.pt")

    records: list[dict[str, object]] = []
    options = StartOptions(seed=SEED, timeouts=Timeouts(PATIENCE, PATIENCE))
    launch(directory, job, options, on_record=lambda record: records.append(dict(record)))
    compare(subject, records, torch.load(kept / "grads.pt"), torch.load(kept / "state.pt"))


def compare(
    subject: str,
    records: list[dict[str, object]],
    grads: dict[str, torch.Tensor],
    state: dict[str, torch.Tensor],
) -> None:
    """Losses, gradient norms, first gradients and parameters are those of eager training."""
    torch.manual_seed(SEED)
    model = SUBJECTS[subject].build()
    optimizer = torch.optim.SGD(model.parameters(), lr=CONFIG.lr)
    assert len(records) == STEPS
    for step, record in enumerate(records):
        result = eager_step(model, SUBJECTS[subject].batch(step), widen=False, step=step, seed=SEED)
        assert CONFIG.max_grad_norm is not None
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CONFIG.max_grad_norm)
        found = {"loss": result.loss, "norm": float(norm)}
        for name, wanted in found.items():
            check_equal([loss_difference(float(str(record[name])), wanted)], TOLERANCE, name)
        if step == 0:
            clipped = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
            first = {name: grads[name] for name in clipped}
            check_equal(differences(first, clipped, gradient_floor(clipped)), TOLERANCE, "gradients")
        optimizer.step()
    final = {name: value.detach() for name, value in model.state_dict().items()}
    assert set(state) == set(final)
    check_equal(differences(state, final, CONFIG.lr), TOLERANCE, "parameters")
