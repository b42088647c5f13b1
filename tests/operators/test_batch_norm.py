"""Batch norm over all pipelines at once, and buffers that a step updates: what one device computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.coverage.convolutional_models import ResNet
from hspmd_compiler.errors import DeduceError
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.program.program import Program
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.opening import StartOptions
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.runtime.start.rendezvous import Timeouts
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import Recompute, RecomputeKind, ScheduleKind, Strategy
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.verify import training
from hspmd_compiler.verify.eager import EagerResult, eager_step, whole_state
from hspmd_compiler.verify.equality import check_equal, differences
from hspmd_compiler.verify.reference import Reference
from hspmd_compiler.verify.training import compare_training

from ..fit import check_fit
from ..training.training_cases import program_for, traced

BATCH, STEPS = 5, 5
ADAMW = OptimizerConfig(lr=1e-3)
SGD = OptimizerConfig(name=OptimizerName.SGD, lr=0.05, momentum=0.9)
"""Of a gradient that is zero but for rounding, as that of a bias before a norm, AdamW makes a full step."""
PATIENCE = timedelta(seconds=60)
Batch = dict[str, Tensor]


def images(step: int) -> Batch:
    """Random images and classes; not centred, so that statistics matter."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 3, 8, 8, generator=generator) * 2 + 1
    return {"x": x, "y": torch.randint(0, 5, (BATCH,), generator=generator)}


@cache
def residual_net() -> LogicalGraph:
    return traced(ResNet(), images(0), BATCH)


def trained(
    build: Callable[[], nn.Module],
    strategy: Strategy,
    batch: Callable[[int], Batch] = images,
    config: OptimizerConfig = SGD,
) -> Program:
    """Compiled, checked to fit, and compared with one device: losses, gradients, parameters, buffers."""
    torch.manual_seed(0)
    model = build()
    graph = residual_net() if build is ResNet else traced(model, batch(0), BATCH)
    program = program_for(graph, strategy)
    check_fit(program)
    state = {name: value.detach().clone() for name, value in whole_state(model).items()}
    report = compare_training(
        program, Reference(build, state, None), [batch(i) for i in range(STEPS)], config
    )
    compared = {item.name for item in report.steps[-1].params}
    assert compared >= {name for name, _ in model.named_buffers()}
    return program


def unequal(layers: int, recompute: tuple[Recompute, ...] = ()) -> Strategy:
    """Two pipelines of unequal depth, degree and samples."""
    deep = (S((0, 1), (0, 1)), S((2,), (1, layers)))
    return Strategy((P(deep, (2,), recompute=recompute), P((S((3, 4, 5), (0, layers), (2, 0, 1)),), (3,))))


STRATEGIES = {
    "one": Strategy((P((S((0,), (0, 3)),), (BATCH,)),)),
    "tp3": Strategy((P((S((0, 1, 2), (0, 3)),), (BATCH,)),)),
    "dp": Strategy((P((S((0,), (0, 3)),), (3,)), P((S((1,), (0, 3)),), (2,)))),
    "unequal": unequal(3),
    "recomputed": unequal(3, (Recompute((0, 3), RecomputeKind.FULL),)),
    "zero": replace(unequal(3), zero=3),
    "weights apart": replace(unequal(3), schedule=ScheduleKind.ZB_H1, zero=2),
    "zero, gathered inside": Strategy(
        (P((S((0, 1), (0, 3)),), (3,)), P((S((2, 3, 4), (0, 3)),), (2,))),
        zero=3,
    ),
}


@pytest.mark.parametrize(
    "strategy",
    [
        "unequal",
        "weights apart",
        "zero, gathered inside",
        *(pytest.param(s, marks=pytest.mark.slow) for s in ("one", "dp", "tp3", "recomputed", "zero")),
    ],
)
def test_residual_net_keeps_the_same_statistics(strategy: str) -> None:
    trained(ResNet, STRATEGIES[strategy], config=ADAMW)


class Net(nn.Module):
    """One layer under test between two convolutions."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), layer, nn.ReLU(), nn.Conv2d(6, 4, 3))
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.net(x).mean((2, 3))), y)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(6, momentum=0.3),
    "batch, no scale": lambda: nn.BatchNorm2d(6, affine=False),
    "batch, no buffers": lambda: nn.BatchNorm2d(6, track_running_stats=False),
    "batch, evaluated": lambda: nn.BatchNorm2d(6).eval(),
    "instance": lambda: nn.InstanceNorm2d(6, affine=True),
}


@pytest.mark.parametrize("layer", list(LAYERS))
def test_kinds_of_norms(layer: str) -> None:
    count = sum(next(part.parameters(), None) is not None for part in Net(LAYERS[layer]()).net)
    trained(lambda: Net(LAYERS[layer]()), unequal(count))


class Noting(nn.Module):
    """Buffers of its own: a count, and an average over the batch that the next step reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 6), nn.Linear(6, 4)])
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.ones(6))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.layers[0](x)
        out = self.layers[1](torch.tanh(hidden * self.average.clone()))
        self.calls.add_(1)
        with torch.no_grad():
            self.average.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
        return nn.functional.mse_loss(out, y)


def rows(step: int) -> Batch:
    generator = torch.Generator().manual_seed(step)
    x, y = (torch.randn(BATCH, 4, generator=generator) for _ in range(2))
    return {"x": x, "y": y}


@pytest.mark.parametrize("strategy", ["tp", "dp", "unequal"])
def test_buffers_of_the_users_own(strategy: str) -> None:
    every = {
        "tp": Strategy((P((S((0, 1), (0, 2)),), (BATCH,)),)),
        "dp": Strategy((P((S((0,), (0, 2)),), (1,)), P((S((1,), (0, 2)),), (4,)))),
        "unequal": unequal(2),
    }
    trained(Noting, every[strategy], rows)


@cache
def noting() -> LogicalGraph:
    return traced(Noting(), rows(0), BATCH)


def test_several_micro_batches_are_refused_with_layers_and_buffers() -> None:
    graph = residual_net()
    with pytest.raises(DeduceError) as caught:
        program_for(graph, Strategy((P((S((0,), (0, 3)),), (2, 1)), P((S((1,), (0, 3)),), (2,)))))
    text = caught.value.text()
    assert "blocks.0.bn1" in text and "running_mean" in text
    assert "pipeline 0" in text and "2 micro-batches" in text and "pipeline 1" not in text
    assert "micro_batches: [n]" in text


def test_an_average_over_micro_batches_is_refused_and_a_count_of_steps_is_not() -> None:
    with pytest.raises(DeduceError, match=r"micro-batches") as caught:
        program_for(noting(), Strategy((P((S((0,), (0, 2)),), (3, 2)),)))
    assert "average" in caught.value.text() and "calls" not in caught.value.text()


def test_evaluated_layers_take_any_number_of_micro_batches() -> None:
    strategy = Strategy((P((S((0, 1), (0, 3)),), (2, 1, 1)), P((S((2,), (0, 3)),), (1,))))
    trained(lambda: Net(nn.BatchNorm2d(6).eval()), strategy)


class Aside(nn.Module):
    """A branch beside the layers, whose norm stands behind them in the text but needs nothing of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(2))
        self.aside = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        first = self.layers[0](x)
        second = self.layers[1](first)
        return nn.functional.mse_loss(second + self.aside(first * 2), y)


def test_pipelines_that_would_wait_for_each_other_are_refused() -> None:
    graph = traced(Aside(), rows(0), BATCH)
    with pytest.raises(DeduceError, match="different orders"):
        program_for(
            graph, Strategy((P((S((0,), (0, 1)), S((1,), (1, 2))), (2,)), P((S((2,), (0, 2)),), (3,))))
        )
    alike = tuple(P((S((n,), (0, 1)), S((n + 1,), (1, 2))), (count,)) for n, count in ((0, 2), (2, 3)))
    trained(Aside, Strategy(alike), rows)


class PerSample(nn.Module):
    """Keeps what it saw of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.register_buffer("seen", torch.zeros(BATCH, 4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.seen.copy_(x)
        return nn.functional.mse_loss(self.layers[1](self.layers[0](x)), y)


def test_a_buffer_per_sample_is_that_of_all_samples() -> None:
    """Every pipeline keeps what the others saw, too."""
    trained(PerSample, Strategy((P((S((0,), (0, 2)),), (2,)), P((S((1,), (0, 2)),), (3,)))), rows)
    with pytest.raises(DeduceError, match="different micro-batches") as caught:
        program_for(traced(PerSample(), rows(0), BATCH), Strategy((P((S((0,), (0, 2)),), (2, 3)),)))
    assert "seen" in caught.value.text() and "self.seen.copy_(x)" in caught.value.text()


def test_processes_train_save_and_load_statistics(tmp_path: Path) -> None:
    config = OptimizerConfig(name=OptimizerName.SGD, lr=0.05)
    program = hspmd.compile(lambda: (ResNet(), images(0)), strategy=unequal(3), optimizer=config)
    program.save(tmp_path / "artifact")

    def job(engine: Engine, emit: Emit) -> None:
        start = engine.state_dict()
        for step in range(2):
            engine.step(images(step))
        ended = engine.state_dict()
        engine.load_state_dict(start)
        again = engine.state_dict()
        if engine.rank == 0:
            torch.save([start, ended, again], tmp_path / "states.pt")

    launch(tmp_path / "artifact", job, StartOptions(seed=3, timeouts=Timeouts(PATIENCE, PATIENCE)))
    start, ended, again = torch.load(tmp_path / "states.pt")
    model = ResNet()
    model.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    for step in range(2):
        eager_step(model, images(step), widen=False)
        optimizer.step()
    wanted = {name: value.detach() for name, value in model.state_dict().items()}
    assert set(ended) == set(wanted) and int(ended["bn1.num_batches_tracked"]) == 2
    check_equal(differences(ended, wanted, config.lr), 1e-5, "parameters and buffers")
    assert all(torch.equal(again[name], start[name]) for name in start)


class Cancelled(nn.Module):
    """Whatever the bias is, the norm takes it away: its gradient is rounding alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.norm(self.inner(x)), y)


ROUNDED = 1e-14


def rounding_falls_one_way(model: nn.Module, *given: Any, **named: Any) -> EagerResult:
    """An eager step in which all that is left of the bias' gradient is positive, on every processor."""
    found = eager_step(model, *given, **named)
    grad = model.get_parameter("inner.bias").grad
    assert grad is not None and float(grad.abs().max()) < ROUNDED
    grad.fill_(ROUNDED)
    return replace(found, grads={**found.grads, "inner.bias": grad.clone()})


def test_rounding_that_adamw_takes_for_a_direction_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "eager_step", rounding_falls_one_way)
    strategy = {"pipelines": [{"stages": [{"devices": [0, 1], "layers": 2}], "micro_batches": [4]}]}
    inputs = {"x": torch.zeros(4, 6), "y": torch.zeros(4, 6)}
    torch.manual_seed(0)
    assert hspmd.compile(Cancelled(), inputs, strategy=strategy).verify(values=True)
