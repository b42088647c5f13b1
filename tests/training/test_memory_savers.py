"""Memory savers together, on strategies drawn at random: every number is that of one device.

ZeRO, recomputation, bfloat16 beside masters, tied weights, stages, dropout, batch norm, a layer that is used
twice, parameters split by hand, clipping, uneven and empty shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hspmd_compiler.compiler import trace_graph
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.options import OptimizerConfig, Precision
from hspmd_compiler.program.check import check
from hspmd_compiler.strategy.strategy import (
    Override,
    PipelineSpec,
    Recompute,
    RecomputeKind,
    ScheduleKind,
    StageSpec,
    Strategy,
)
from hspmd_compiler.verify.eager import whole_state
from hspmd_compiler.verify.reference import Reference
from hspmd_compiler.verify.training import compare_training

from ..fit import check_fit
from .training_cases import Batch, gpt2, llama, program_for, tokens

BATCH, STEPS, LAYERS = 10, 3, 2
QUICK, ALL = 3, 300
ADAMW = OptimizerConfig(lr=1e-2, eps=1e-4, weight_decay=0.1)
MOST_DEVICES = 6


class Odd(nn.Module):
    """Widths that nothing divides, a scale of length 1, norms, dropout, and its first layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(OddLayer(7, 5) for _ in range(LAYERS))
        self.scale = nn.Parameter(torch.full((1,), 0.9))
        self.head = nn.Linear(7, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in (*self.layers, self.layers[0]):
            x = layer(x)
        return functional.cross_entropy(self.head(x * self.scale), y)


class OddLayer(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.down(functional.gelu(self.up(self.norm(x)))))


class Normed(nn.Module):
    """Batch norm behind each layer: statistics of the whole batch, and buffers that a step updates."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)) for _ in range(LAYERS))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return functional.cross_entropy(self.head(x), y)


def vectors(width: int) -> Callable[[int], Batch]:
    def batch(step: int) -> Batch:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(BATCH, width, generator=generator)
        return {"x": x, "y": torch.randint(0, 3, (BATCH,), generator=generator)}

    return batch


@dataclass(frozen=True)
class Subject:
    """names: what overrides may name. whole_batch: pipelines run one micro-batch. narrow: takes bfloat16."""

    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    names: tuple[str, ...]
    whole_batch: bool = False
    narrow: bool = True
    quick: bool = False


SUBJECTS = {
    "odd": Subject(lambda: Odd().train(), vectors(7), ("up", "down", "head", "norm"), quick=True),
    "normed": Subject(lambda: Normed().train(), vectors(6), ("head", "layers.0.0"), True, False, True),
    "llama": Subject(lambda: llama(3), tokens, ("q_proj", "up_proj", "down_proj", "lm_head")),
    "gpt2": Subject(lambda: gpt2(dropout=0.1), tokens, ("c_fc", "mlp.c_proj", "wte", "wpe")),
}


@cache
def graph_of(subject: str, precision: Precision) -> LogicalGraph:
    made = SUBJECTS[subject]
    return trace_graph(made.build(), made.batch(0), BATCH, precision=precision).graph


@cache
def reference_of(subject: str) -> Reference:
    torch.manual_seed(0)
    build = SUBJECTS[subject].build
    state = {name: value.detach().clone() for name, value in whole_state(build()).items()}
    return Reference(build, state, None)


@dataclass(frozen=True)
class Case:
    subject: str
    precision: Precision
    strategy: Strategy
    clip: float | None


def drawn(number: int, quick: bool) -> Case:
    """The case of a number, the same in every run."""
    random = Random(number)
    subject = random.choice([name for name, each in SUBJECTS.items() if each.quick or not quick])
    narrow = SUBJECTS[subject].narrow and random.random() < 0.4
    precision = Precision.BFLOAT16 if narrow else Precision.MODEL
    return Case(subject, precision, strategy_of(random, subject), random.choice([None, 0.1]))


def strategy_of(random: Random, subject: str) -> Strategy:
    made = SUBJECTS[subject]
    devices = iter(random.sample(range(20), MOST_DEVICES))
    parts = split(random, BATCH, random.choice([1, 2, 2, 3]))
    left, pipelines = MOST_DEVICES, []
    for index, samples in enumerate(parts):
        most = left - 2 * (len(parts) - index - 1)
        stages = stages_of(random, devices, max(1, min(most, 4)))
        left -= sum(stage.tp for stage in stages)
        count = 1 if made.whole_batch else min(samples, random.choice([1, 2, 2, 3, 4]))
        pipelines.append(PipelineSpec(stages, tuple(split(random, samples, count)), recompute_of(random)))
    if random.random() < 0.4:  # equal pipelines but for their samples gather and hand over inside
        pipelines = alike(random, pipelines, devices)
    return Strategy(
        tuple(pipelines),
        schedule=random.choice([ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B]),  # hashed programs
        sequence_parallel=random.random() < 0.3,
        overrides=tuple(overrides_of(random, made.names)),
        zero=random.choice([1, 2, 2, 3, 3]),
    )


def split(random: Random, total: int, count: int) -> list[int]:
    """So many numbers of at least 1."""
    cuts = sorted(random.sample(range(1, total), count - 1))
    return [high - low for low, high in zip([0, *cuts], [*cuts, total], strict=True)]


def stages_of(random: Random, devices: Iterator[int], most: int) -> tuple[StageSpec, ...]:
    ranges = [(0, 1), (1, LAYERS)] if most > 1 and random.random() < 0.5 else [(0, LAYERS)]
    stages = []
    for index, layers in enumerate(ranges):
        degree = random.randint(1, min(3, most - (len(ranges) - index - 1)))
        most -= degree
        shares = tuple(random.randint(0, 2) for _ in range(degree))
        own = shares if any(shares) and random.random() < 0.4 else None
        stages.append(StageSpec(tuple(next(devices) for _ in range(degree)), layers, own))
    return tuple(stages)


def alike(random: Random, pipelines: list[PipelineSpec], devices: Iterator[int]) -> list[PipelineSpec]:
    """The first pipeline twice, with as many micro-batches of other sizes."""
    first = pipelines[0]
    count = len(first.micro_batches)
    own = [device for each in pipelines for device in each.devices] + list(devices)
    size = len(first.devices)
    if 2 * size > len(own) or 2 * count > BATCH:
        return pipelines
    again = []
    for number, samples in enumerate(split_at_least(random, BATCH, 2, count)):
        ids = iter(own[number * size : (number + 1) * size])
        stages = tuple(replace(s, devices=tuple(next(ids) for _ in s.devices)) for s in first.stages)
        again.append(replace(first, stages=stages, micro_batches=tuple(split(random, samples, count))))
    return again


def split_at_least(random: Random, total: int, count: int, least: int) -> list[int]:
    return [least - 1 + part for part in split(random, total - count * (least - 1), count)]


def recompute_of(random: Random) -> tuple[Recompute, ...]:
    kinds = [random.choice(list(RecomputeKind)) for _ in range(LAYERS)]
    if kinds[0] is RecomputeKind.FULL and random.random() < 0.3:
        return (Recompute((0, LAYERS), RecomputeKind.FULL, 2),)
    ranges = (Recompute((layer, layer + 1), kind) for layer, kind in enumerate(kinds))
    return tuple(each for each in ranges if each.kind is not RecomputeKind.NONE)


def overrides_of(random: Random, names: tuple[str, ...]) -> Iterator[Override]:
    for name in names:
        if random.random() < 0.2:
            yield Override(name, duplicate=True) if random.random() < 0.3 else Override(name, split=0)


def train(case: Case) -> None:
    program = program_for(graph_of(case.subject, case.precision), case.strategy)
    check(program)
    check_fit(program)
    batches = [SUBJECTS[case.subject].batch(step) for step in range(STEPS)]
    config = replace(ADAMW, max_grad_norm=case.clip)
    compare_training(program, reference_of(case.subject), batches, config)


@pytest.mark.parametrize("number", range(QUICK))
def test_a_few_small_models(number: int) -> None:
    train(drawn(number, quick=True))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(ALL))
def test_many_of_all_models(number: int) -> None:
    train(drawn(number, quick=False))
