"""Buffers that forward assigns anew, and counts of steps: what one device has after every step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.errors import DeduceError
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy

from ..operators.test_batch_norm import BATCH, Batch, program_for, rows, trained
from .training_cases import traced

WIDTH = 4
Update = Callable[["Assigning", Tensor], Tensor]


class Assigning(nn.Module):
    """Buffers of its own and of a block; `update` gives them new tensors and returns the layers' output."""

    def __init__(self, update: Update) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.update = update
        for holder in (self, self.layers[1]):
            holder.register_buffer("mean", torch.ones(WIDTH))
        self.register_buffer("before", torch.zeros(WIDTH))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return nn.functional.mse_loss(self.update(self, x), y)


def mean(x: Tensor) -> Tensor:
    return x.detach().mean(0)


def smoothed(m: Assigning, x: Tensor) -> Tensor:
    """Reads the old value, whose derivative is needed, and the new one."""
    old = x * m.mean
    m.mean = m.mean * 0.9 + mean(x) * 0.1
    return old * m.mean


def registered(m: Assigning, x: Tensor) -> Tensor:
    m.register_buffer("mean", m.mean + mean(x))
    return x * m.mean


def underneath(m: Assigning, x: Tensor) -> Tensor:
    m._buffers["mean"] = m.mean - mean(x)
    return x * m.mean


def by_the_parent(m: Assigning, x: Tensor) -> Tensor:
    block = m.layers[1]
    block.mean = block.mean + mean(x)  # type: ignore[assignment]
    return x * block.mean  # type: ignore[return-value]


def rotated(m: Assigning, x: Tensor) -> Tensor:
    m.before, m.mean = m.mean, mean(x)
    return x + m.before


def exchanged(m: Assigning, x: Tensor) -> Tensor:
    m.before, m.mean = m.mean, m.before + 1
    return x * m.mean


def read_first(m: Assigning, x: Tensor) -> Tensor:
    old, m.mean = x * m.mean, m.mean + mean(x)
    return old * old


def twice(m: Assigning, x: Tensor) -> Tensor:
    m.mean.mul_(0.5)
    m.mean = m.mean + mean(x)
    return x * m.mean


def warmed_up(m: Assigning, x: Tensor) -> Tensor:
    m.steps = m.steps + 1
    return (m.steps / 3).clamp(max=1) * x


def counted_in_place(m: Assigning, x: Tensor) -> Tensor:
    x = x * m.steps.clone()
    m.steps += 1
    return x


AVERAGES: tuple[Update, ...] = (smoothed, registered, underneath, by_the_parent, rotated, twice)
TENSOR = Strategy((P((S((0, 1), (0, 1)), S((2,), (1, 2))), (BATCH,)),))
UNEQUAL = Strategy((P((S((0, 1), (0, 2)),), (3,)), P((S((2,), (0, 2)),), (2,))))
ACCUMULATED = Strategy((P((S((0, 1), (0, 1)), S((2,), (1, 2))), (2, 1)), P((S((3,), (0, 2)),), (1, 1))))


def batch(step: int) -> Batch:
    return rows(step)


@pytest.mark.parametrize("update", AVERAGES)
def test_new_values_are_eagers(update: Update) -> None:
    trained(lambda: Assigning(update), TENSOR, batch)


@pytest.mark.parametrize("update", [rotated, read_first])
def test_new_values_are_those_of_the_whole_batch(update: Update) -> None:
    trained(lambda: Assigning(update), UNEQUAL, batch)


@pytest.mark.parametrize("update", [warmed_up, counted_in_place, exchanged])
def test_steps_are_counted_once_whatever_the_micro_batches(update: Update) -> None:
    trained(lambda: Assigning(update), ACCUMULATED, batch)


def test_averages_over_micro_batches_are_refused() -> None:
    graph = traced(Assigning(read_first), batch(0), BATCH)
    with pytest.raises(DeduceError) as caught:
        program_for(graph, ACCUMULATED)
    assert "mean" in caught.value.text() and "micro_batches: [n]" in caught.value.text()
