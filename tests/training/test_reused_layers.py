"""Layers that run again behind a later stage: exact, and each use is differentiated where it ran."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import hspmd_compiler as hspmd
from hspmd_compiler.base.devices import DeviceKind
from hspmd_compiler.compiler import trace_graph
from hspmd_compiler.ir.graph import LogicalGraph, Phase
from hspmd_compiler.options import Precision
from hspmd_compiler.passes.deduction.stages import assign_stages, classify, operand_rows
from hspmd_compiler.strategy.strategy import PipelineSpec, Recompute, RecomputeKind, StageSpec, Strategy

WIDTH, CLASSES = 6, 3
STAGES = (StageSpec((0, 1), (0, 1)), StageSpec((2,), (1, 2)))
BESIDE = PipelineSpec((StageSpec((3,), (0, 2)),), (1,))
STRATEGY = Strategy((PipelineSpec(STAGES, (1, 1)), BESIDE))
FULL = PipelineSpec(STAGES, (1, 1), (Recompute((0, 2), RecomputeKind.FULL),))
STRATEGIES = {
    "plain": STRATEGY,
    "zero": replace(STRATEGY, zero=3),
    "recomputed": Strategy((FULL, BESIDE), sequence_parallel=True),
}
ORDERS = [(0, 1, 0), (0, 1, 0, 1), (1, 0)]
BATCH = {"x": torch.zeros(3, 5, WIDTH), "y": torch.zeros(3, dtype=torch.int64)}


class Block(nn.Module):
    """A residual block; layer norm keeps statistics for its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mix(self.norm(x)).relu()


class Reused(nn.Module):
    """Two layers in an order in which they come more than once, or in reverse."""

    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__()
        self.order = order
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.between = nn.Parameter(torch.randn(WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.order:
            x = self.layers[layer](x * self.between)
        return nn.functional.cross_entropy(self.head(x.mean(1)), y)


@pytest.mark.parametrize(
    ("order", "strategy"),
    [*((order, "plain") for order in ORDERS), (ORDERS[0], "zero"), (ORDERS[1], "recomputed")],
)
def test_it_trains_as_on_one_device(order: tuple[int, ...], strategy: str) -> None:
    hspmd.compile(Reused(order), BATCH, strategy=STRATEGIES[strategy]).verify(values=True)


@pytest.mark.parametrize("order", ORDERS)
def test_every_use_is_differentiated_where_it_ran(order: tuple[int, ...]) -> None:
    graph = trace_graph(Reused(order), BATCH, 3).graph
    kept = [(stage, use) for stage, use in _norms(graph, Phase.FORWARD)]
    assert sorted(kept) == sorted(_norms(graph, Phase.BACKWARD))
    assert {stage for stage, _ in kept} == ({1} if order[0] else {0, 1})


def _norms(graph: LogicalGraph, phase: Phase) -> list[tuple[int, int | None]]:
    """(stage, layer) of every layer norm."""
    operands = operand_rows(graph)
    stages = assign_stages(graph, classify(graph), STRATEGY.pipelines[0], operands)
    rows = [row for row in graph.rows if "layer_norm" in row.op and row.phase is phase]
    return [(stages[row.id], row.layer) for row in rows]


@pytest.mark.parametrize("kind", list(DeviceKind))
def test_statistics_have_the_type_that_their_device_gives_them(kind: DeviceKind) -> None:
    """In bfloat16 a CPU keeps statistics of a layer norm in bfloat16, CUDA in float32."""
    program = hspmd.compile(
        Reused((0, 1, 0)), BATCH, strategy=STRATEGY, precision=Precision.BFLOAT16, device=kind
    )
    program.verify()
