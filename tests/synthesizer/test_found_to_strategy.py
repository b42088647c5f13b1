"""Found programs as strategies: readable, compiled, exact, and about as quick as the search took them for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hspmd_compiler.api import compile, plan
from hspmd_compiler.compiler import trace_graph
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.strategy.strategy import (
    LayoutWish,
    Override,
    PipelineSpec,
    Recompute,
    RecomputeKind,
    StageSpec,
    Strategy,
)
from hspmd_compiler.strategy.write import TextForm, strategy_text
from hspmd_compiler.synthesizer.planner.found_to_strategy import realise
from hspmd_compiler.synthesizer.planner.plan import Plan
from hspmd_compiler.synthesizer.value_types import (
    FoundExchange,
    FoundInput,
    FoundProgram,
    Holding,
    ParamChoice,
    ValueType,
)
from tests.cost_models.priced import cluster, device

Expect = Callable[[str, str], None]
Made = tuple[nn.Module, dict[str, Tensor]]
WIDE = ValueType(Holding.WHOLE)


class Stack(nn.Module):
    """Equal layers."""

    def __init__(self, width: int, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return functional.mse_loss(x, y)


def narrow() -> Made:
    """Samples are most of it."""
    return Stack(16), {"x": torch.zeros(2, 16), "y": torch.zeros(2, 16)}


def wide() -> Made:
    """Parameters are most of it."""
    return Stack(256), {"x": torch.zeros(2, 256), "y": torch.zeros(2, 256)}


def encoder() -> Made:
    """Heads, and views between."""
    torch.manual_seed(0)

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(2)
            )

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x.square().mean()

    return Encoder(), {"x": torch.zeros(2, 8, 32)}


def graph_of(made: Made, batch: int) -> LogicalGraph:
    return trace_graph(*made, batch, anchors=("*",)).graph


def split(dim: int) -> ValueType:
    return ValueType(Holding.SPLIT, dim)


def base(*shares: int) -> Strategy:
    stage = StageSpec((0, 1, 2), (0, 3), shares or None)
    return Strategy((PipelineSpec((stage,), (8,)),))


def test_a_program_is_written_with_globs() -> None:
    """Where stages' shares give the units, nothing more is said; else the units themselves."""
    graph = graph_of(narrow(), 8)
    rows = {row.args[1]: row.id for row in graph.rows if row.op == "hspmd.anchor.default"}
    exchanges = tuple(
        FoundExchange(name, rows[name], split(0), kind, shares, 0.0, "", "")
        for name, kind, shares in (
            ("layers.0", WIDE, None),
            ("layers.1", WIDE, None),
            ("layers.2", split(1), (6, 6, 4)),
            ("relu", ValueType(Holding.REPLICATE), None),
        )
    )
    params = tuple(
        ParamChoice(f"layers.{layer}.{name}", kind, shares, 1, 0.0)
        for layer in range(3)
        for name, kind, shares in (("weight", split(0), (8, 4, 4)), ("bias", WIDE, None))
    )
    found = FoundProgram(
        3, params, exchanges, 1.0, 1.0, 0.0, 0.0, 1.0, (0, 0, 0),
        recompute=(0, 2), inputs=(FoundInput("x", split(0), (4, 2, 2)),),
    )  # fmt: skip
    strategy = realise(found, graph, base(2, 1, 1))
    assert set(strategy.overrides) == {
        Override("layers.*.weight", split=0),
        Override("layers.*.bias", duplicate=True),
    }
    assert set(strategy.layouts) == {
        LayoutWish("x", "S0"),
        LayoutWish("layers.0", "D"),
        LayoutWish("layers.1", "D"),
        LayoutWish("layers.2", "S1(6,6,4)"),
        LayoutWish("relu", "D"),
    }
    assert strategy.zero == 1
    assert strategy.pipelines[0].recompute == (
        Recompute((0, 1), RecomputeKind.FULL),
        Recompute((2, 3), RecomputeKind.FULL),
    )
    even = realise(found, graph, base())
    assert Override("layers.*.weight", split=0, shares=(8, 4, 4)) in even.overrides
    assert LayoutWish("x", "S0(4,2,2)") in even.layouts


def test_units_and_repeats_are_written() -> None:
    """Heads of 4 elements; and q, k, v behind each other."""
    graph = graph_of(narrow(), 8)
    row = next(row.id for row in graph.rows if row.op == "hspmd.anchor.default" and row.args[1] == "relu")

    def text(kind: ValueType, shares: tuple[int, ...], *stage: int) -> str:
        exchange = FoundExchange("relu", row, WIDE, kind, shares, 0.0, "", "")
        found = FoundProgram(3, (), (exchange,), 1.0, 1.0, 0.0, 0.0, 1.0, (0, 0, 0))
        (wish,) = realise(found, graph, base(*stage)).layouts
        return wish.to

    heads = ValueType(Holding.SPLIT, 1, units=4)
    fused = ValueType(Holding.SPLIT, 1, units=4, repeats=2)
    assert text(heads, (2, 1, 1), 2, 1, 1) == "S1/4"
    assert text(heads, (2, 2, 0), 2, 1, 1) == "S1(2,2,0)"
    assert text(fused, (2, 1, 1), 2, 1, 1) == "S1(2,1,1){8,8}"


@pytest.mark.parametrize(
    ("model", "batch"),
    [(narrow, 400), (wide, 4), pytest.param(encoder, 8, marks=pytest.mark.slow)],
    ids=["narrow", "wide", "encoder"],
)
def test_found_programs_are_exact(model: Callable[[], Made], batch: int) -> None:
    """All that was found, not only what was chosen, on three unequal devices."""
    spec = cluster([device(peak=1e9), device(peak=1e9, pace=2), device(peak=1e9, pace=2)])
    found = plan(model, cluster=spec, global_batch=batch)
    searched = [one for one in (found.chosen, *found.runner_ups) if one.candidate.found is not None]
    assert searched
    assert not [one.refused for one in searched if one.refused]
    for one in searched:
        program = compile(model, strategy=one.strategy, cluster=spec)
        program.verify(values=True)
        assert program.estimate(spec).step_s == one.step_s


def searched(found: Plan, rel: float) -> str:
    """The quickest that a search found, which its own price is near to."""
    best = found.searched
    assert best is not None and best.candidate.found is not None
    assert best.step_s == pytest.approx(best.candidate.found.price_s, rel=rel)
    return strategy_text(replace(best.strategy, name=best.name), TextForm.YAML)


def test_samples_are_cut_where_they_are_most(expect: Expect) -> None:
    """A step that is all computing on slow devices: less than 5 % above its bound."""
    spec = cluster([device(peak=1e9), device(peak=1e9, pace=2), device(peak=1e9, pace=2)])
    found = plan(narrow, cluster=spec, global_batch=20000)
    expect("plan/narrow", searched(found, rel=0.1))


def test_features_are_cut_where_parameters_are_most(expect: Expect) -> None:
    spec = cluster([device(peak=1e10)], [device(peak=1e10, pace=2)], [device(peak=1e10, pace=2)])
    found = plan(wide, cluster=spec, global_batch=4)
    expect("plan/wide", searched(found, rel=0.25))
