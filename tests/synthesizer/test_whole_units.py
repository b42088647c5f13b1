"""Heads, channels and samples are shared out whole, and a search prices them so."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hspmd_compiler.api import compile, plan
from hspmd_compiler.base.comm_plan import CommKind, Traffic
from hspmd_compiler.cluster.cluster import ClusterSpec
from hspmd_compiler.compiler import trace_graph
from hspmd_compiler.cost_models.links import ClusterCost
from hspmd_compiler.layout.shares import assign_units
from hspmd_compiler.synthesizer.machine import SearchMachine, machine_of
from hspmd_compiler.synthesizer.options import SearchOptions
from hspmd_compiler.synthesizer.param_prices import ParamPrices
from hspmd_compiler.synthesizer.ratios import vertices
from hspmd_compiler.synthesizer.row_prices import RowPrices
from hspmd_compiler.synthesizer.space.search_space import SearchSpace
from hspmd_compiler.synthesizer.whole_shares import SAMPLES, WholeShares
from tests.cost_models.priced import cluster, device

HEADS, WIDTH, TOKENS = 12, 48, 256
QUICK, SLOW = 3.86e9, 2.15e9
SPEEDS = (QUICK,) * 2 + (SLOW,) * 6
"""HAP's mix: two of eight devices are quick."""


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, WIDTH, dropout=0.0, batch_first=True) for _ in range(2)
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return (x - y).square().mean()


def attention() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    return Attention(), {"x": torch.zeros(1, TOKENS, WIDTH), "y": torch.zeros(1, TOKENS, WIDTH)}


def machines() -> ClusterSpec:
    return cluster([device(peak=speed) for speed in SPEEDS])


@cache
def machine() -> SearchMachine:
    spec = machines()
    return machine_of(spec, [list(spec.slots)], ratios=[vertices(SPEEDS)], samples=[1])


@given(
    units=st.integers(1, 40),
    groups=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_a_lane_has_the_largest_share_of_its_ranks(units: int, groups: list[list[int]]) -> None:
    """All ranks in one lane: what the slowest of them gets to do."""
    vectors = [(tuple(one / sum(weights) for one in weights),) for weights in groups]
    places = [[(at, place) for at, weights in enumerate(groups) for place in range(len(weights))]]
    whole = WholeShares(vectors, [0] * len(groups), places)
    wanted = [[one / units for one in assign_units(units, vector[0])] for vector in vectors]
    assert [list(each) for each in whole.vectors(0, units)] == wanted
    assert whole.of_lanes(0, units) == (max(max(each) for each in wanted),)
    assert whole.vectors(0, SAMPLES) == tuple(vector[0] for vector in vectors)  # not counted


def test_heads_of_unequal_devices_cost_what_the_slowest_has() -> None:
    """3, 3 and 1 of 12: 1.34 times what free shares would, in the price of a row and of its parameters."""
    graph = trace_graph(*attention(), 1).graph
    space = SearchSpace.of(graph)
    counted, free = machine(), replace(machine(), whole=None, moved=None)
    assert counted.shares(0, HEADS) == (3 / 12, 1 / 12)
    times = []
    for step, ways in zip(space.steps, space.ways, strict=True):
        for way in ways:
            if "attention" in step.row.op and way.units == HEADS:
                prices = [RowPrices(space.works, on).seconds(step.row, way) for on in (counted, free)]
                times.append(prices[0] / prices[1])
    assert times and all(one == pytest.approx(1.34, abs=0.02) for one in times)
    (name,) = (name for name in graph.params if name.endswith("0.self_attn.in_proj_weight"))
    info = graph.params[name]
    cuts = space.walk.ways.cuts(info.row)
    place = next(at for at, cut in enumerate(cuts) if cut.units == HEADS)
    units, options = [cut.units for cut in cuts], SearchOptions(zero=(0,))
    held = [list(ParamPrices(on, options).ways(info, [place], units))[-2].held for on in (counted, free)]
    assert held[0][0] / held[1][0] == pytest.approx((3 / 12) / (QUICK / sum(SPEEDS)))


def test_gathers_of_whole_units_move_the_longest_piece() -> None:
    """Two ranks of one quick and one slow: of three units the quick one has two."""
    spec = cluster([device()] * 2)
    on = machine_of(spec, [list(spec.slots)], ratios=[vertices((3.0, 2.0))])
    size = float(1 << 28)
    many, few = on.gather(0, 1000).seconds(size), on.gather(0, 3).seconds(size)
    assert on.gather(0).seconds(size) == many
    assert few / many == pytest.approx((2 / 3) / (3 / 5), rel=0.01)
    assert on.exchange((0, 3), (0, 3), same_dim=True).seconds(size) == 0


@pytest.mark.parametrize(("before", "after"), [(256, 16), (12, 256), (16, 12), (1000, 1000)])
def test_exchanges_of_whole_units_cost_what_they_move(before: int, after: int) -> None:
    """Samples to experts and back: as the pieces that ranks really have, whichever side has the longest."""
    spec = cluster(*[[device()]] * 8)
    on = machine_of(spec, [list(spec.slots)], ratios=[vertices(SPEEDS)])
    cost, size = ClusterCost(spec, dict(enumerate(spec.slots))), 1 << 28
    held, wanted = (assign_units(count, SPEEDS) for count in (before, after))
    volumes = {
        (i, j): round(size * one / before * other / after)
        for i, one in enumerate(held)
        for j, other in enumerate(wanted)
        if i != j
    }
    exact = cost.comm_s([Traffic(CommKind.ALL_TO_ALL, tuple(range(8)), volumes)])
    priced = on.exchange((0, before), (0, after), same_dim=False).seconds(size)
    assert priced == pytest.approx(exact, rel=0.06)


def test_what_is_searched_costs_what_is_compiled() -> None:
    """Twelve heads over eight unequal devices: shared out freely they were planned at 0.76 of the price."""
    found = plan(attention, cluster=machines(), global_batch=1)
    searched = [
        one for one in (found.chosen, *found.runner_ups) if one.candidate.found and "no " not in one.name
    ]
    assert any(one.name.startswith("1 x 8") for one in searched)
    for one in searched:
        assert one.candidate.found is not None
        assert one.step_s == pytest.approx(one.candidate.found.price_s, rel=0.1), one.name
    compile(attention, strategy=found.strategy, cluster=machines()).verify(values=True)
