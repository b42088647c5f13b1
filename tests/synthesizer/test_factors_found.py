"""Gradients made of gathered factors, where a search finds that they are the quickest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hspmd_compiler.api import compile, plan
from hspmd_compiler.cluster.cluster import ClusterSpec, DeviceSpec
from hspmd_compiler.compiler import trace_graph
from hspmd_compiler.cost_models.compute import DeviceRates
from hspmd_compiler.pages.plan_page import plan_sections
from hspmd_compiler.pages.sections import Table
from hspmd_compiler.strategy.strategy import GradientForm, PipelineSpec, StageSpec, Strategy
from hspmd_compiler.synthesizer.link_prices import LinkPrice
from hspmd_compiler.synthesizer.machine import Lane, SearchMachine, machine_of
from hspmd_compiler.synthesizer.options import SearchOptions
from hspmd_compiler.synthesizer.planner.explain import explain
from hspmd_compiler.synthesizer.planner.found_to_strategy import realise
from hspmd_compiler.synthesizer.search import search
from hspmd_compiler.synthesizer.value_types import FoundProgram, Holding
from tests.cost_models.priced import cluster, device
from tests.synthesizer.test_found_to_strategy import encoder

Made = tuple[nn.Module, dict[str, Tensor]]
BATCH = 16


class Images(nn.Module):
    """Convolutions over many pixels, which only samples cut cheaply, around a wide linear layer over few."""

    def __init__(self, channels: int = 16, side: int = 4) -> None:
        super().__init__()
        self.first, self.second, self.third, self.fourth = (
            nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(4)
        )
        self.wide = nn.Linear(channels * side * side, channels * side * side)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.avg_pool2d(torch.relu(self.second(torch.relu(self.first(x)))), 8)
        x = self.wide(x.flatten(1)).view_as(x)
        x = functional.interpolate(x, scale_factor=8)
        return torch.relu(self.fourth(torch.relu(self.third(x)))).square().mean()


class Mixed(nn.Module):
    """Linear layers over tokens with and without a bias, a norm, a bare product, and a table read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6, bias=False)
        self.norm = nn.LayerNorm(6)
        self.matrix = nn.Parameter(torch.randn(6, 4))
        self.scale = nn.Parameter(torch.ones(4))
        self.tied = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x + self.down(torch.relu(self.up(x)))) @ self.matrix
        return self.tied(self.tied(x) * self.scale).square().mean()


def images() -> Made:
    return Images(), {"x": torch.zeros(2, 16, 32, 32)}


def mixed() -> Made:
    return Mixed(), {"x": torch.zeros(2, 3, 6)}


def slow_links(nodes: int) -> ClusterSpec:
    """Quick devices, one a node."""
    quick = replace(device(peak=1e12), memory_bandwidth=1e13)
    return cluster(*[[quick] for _ in range(nodes)])


def with_factors(found: FoundProgram) -> set[str]:
    return {choice.name for choice in found.params if choice.type.holding is Holding.FACTORS}


@cache
def best(factors: bool) -> tuple[FoundProgram, Strategy]:
    """On four nodes, all in one group."""
    spec = slow_links(4)
    graph = trace_graph(*images(), BATCH, anchors=("*",)).graph
    machine = machine_of(spec, [[*spec.slots]])
    found = search(graph, machine, SearchOptions(zero=(0,), factors=factors))
    stage = StageSpec(tuple(range(4)), (0, 1))
    return found, realise(found, graph, Strategy((PipelineSpec((stage,), (BATCH,)),)))


def test_factors_win_where_links_are_slow_and_samples_few() -> None:
    """As searched, and as compiled and priced; the program is exact."""
    spec = slow_links(4)
    (found, strategy), (without, summed) = best(True), best(False)
    assert with_factors(found) == {"wide.weight", "wide.bias"}
    assert not with_factors(without)
    assert found.price_s < without.price_s
    program = compile(images, strategy=strategy, cluster=spec)
    program.verify(values=True)
    assert program.estimate(spec).step_s < compile(images, strategy=summed).estimate(spec).step_s


def test_plans_gather_factors_and_say_so() -> None:
    found = plan(images, cluster=slow_links(4), global_batch=BATCH)
    assert found.found is not None
    assert {one.match for one in found.strategy.overrides if one.gradient} == {"wide.weight", "wide.bias"}
    (told,) = explain(found.found, "wide.weight")
    assert [one.type.text() for one in told.ways if one.is_chosen] == ["F"]
    assert {"D", "E", "S0", "S1"} <= {one.type.text().split("/")[0] for one in told.ways}
    table = next(
        one for one in plan_sections(found, ()) if isinstance(one, Table) and one.key == "parameters"
    )
    assert {row[0]: row[3] for row in table.rows}["wide.weight"] == "Dx4, factors"
    (other,) = explain(found.found, "first.weight")
    assert "F" not in {one.type.text() for one in other.ways}


def eager_for_factors(ranks: int, outer: int, micro_batches: int) -> SearchMachine:
    """Gathers cost next to nothing, all other moves much, and work enough to be shared."""
    dear, cheap = LinkPrice(((1e3, 1.0),)), LinkPrice(((1e-12, 1e-18),))
    slow = DeviceRates(DeviceSpec("cpu", peaks={"float32": 1e5}, memory_bandwidth=1e5), "cpu")
    return SearchMachine(
        ranks=ranks,
        vertices=((1 / ranks,) * ranks,),
        lanes=(Lane(slow, (1 / ranks,), 1 / outer),),
        gathers=(cheap,),
        scatters=(dear,),
        exchanges=((dear,),),
        reslices=((cheap,),),
        reduces=dear,
        all_reduces=dear,
        piece_reduces=cheap,
        param_gathers=cheap,
        outer=outer,
        micro_batches=micro_batches,
    )


LINEAR = {
    mixed: {"up.weight", "up.bias", "down.weight", "matrix"},
    encoder: {
        f"layers.{layer}.{name}"
        for layer in range(2)
        for part in ("self_attn.out_proj.", "linear1.", "linear2.", "self_attn.in_proj_")
        for name in (f"{part}weight", f"{part}bias")
    },
}


@pytest.mark.parametrize(
    ("model", "ranks", "sizes", "zero"),
    [
        (mixed, 2, [[4]], 0),
        (mixed, 3, [[4, 3]], 1),
        (mixed, 2, [[4, 2], [3, 3]], 0),
        (mixed, 2, [[4], [2]], 3),
        (encoder, 2, [[4]], 0),
        (encoder, 2, [[4], [2, 2]], 3),
    ],
)
def test_found_programs_with_factors_are_exact(
    model: Callable[[], Made], ranks: int, sizes: list[list[int]], zero: int
) -> None:
    """On several ranks, pipelines, micro-batches of several sizes, with ZeRO; of linear layers alone."""
    graph = trace_graph(*model(), sum(map(sum, sizes)), anchors=("*",)).graph
    machine = eager_for_factors(ranks, len(sizes), max(map(len, sizes)))
    found = search(graph, machine, SearchOptions(zero=(zero,), memory=False))
    assert with_factors(found)
    assert with_factors(found) <= LINEAR[model]
    layers = max(len(graph.layers), 1)
    pipelines = [
        PipelineSpec((StageSpec(tuple(range(ranks * at, ranks * at + ranks)), (0, layers)),), tuple(each))
        for at, each in enumerate(sizes)
    ]
    strategy = realise(found, graph, Strategy(tuple(pipelines)))
    assert any(one.gradient is GradientForm.FACTORS for one in strategy.overrides)
    compile(model, strategy=strategy).verify(values=True)
