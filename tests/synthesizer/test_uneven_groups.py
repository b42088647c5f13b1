"""Groups of unequal size: a program is searched in them, compiles to its price, and can be the best."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.api import compile, plan
from hspmd_compiler.cluster.cluster import ClusterSpec
from hspmd_compiler.synthesizer.link_prices import SearchGroup, rings_across
from hspmd_compiler.synthesizer.machine import machine_of
from hspmd_compiler.synthesizer.planner.plan import Plan
from hspmd_compiler.synthesizer.whole_shares import SAMPLES as SAMPLES_OF_GROUPS
from tests.cost_models.priced import cluster, device

WIDTH, TOKENS, SAMPLES = 24, 128, 2
GROUPS = "1 x 3 + 1 x 1"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(1)
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return (x - y).square().mean()


def net() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    return Net(), {"x": torch.zeros(2, TOKENS, WIDTH), "y": torch.zeros(2, TOKENS, WIDTH)}


def machines() -> ClusterSpec:
    """Three slow devices, and a quick one in a node of its own."""
    return cluster([device(peak=1e9)] * 3, [device(peak=3e9)])


@cache
def found() -> Plan:
    return plan(net, cluster=machines(), global_batch=SAMPLES)


def test_the_best_plan_has_groups_of_unequal_size() -> None:
    """One sample each: three share theirs, which no even grouping can do as well."""
    best = found().chosen
    assert best.name.startswith(f"{GROUPS}, searched")
    assert [len(pipeline.devices) for pipeline in best.strategy.pipelines] == [3, 1]
    others = [one for one in found().runner_ups if not one.name.startswith(f"{GROUPS}, searched")]
    assert any(one.name == f"{GROUPS} by speed" for one in others)
    assert best.step_s < 0.96 * min(one.step_s for one in others)
    compile(net, strategy=best.strategy, cluster=machines()).verify(values=True)


def test_samples_are_whole_in_what_is_planned() -> None:
    """A sample is not shared by halves: no program is compiled to much more than it was priced at."""
    for one in (found().chosen, *found().runner_ups):
        if one.candidate.found is not None and "no ZeRO" not in one.name:
            assert one.step_s == pytest.approx(one.candidate.found.price_s, rel=0.2), one.name


def test_pieces_of_a_gradient_meet_those_that_they_overlap() -> None:
    """Quarters beside halves: each half sums with two quarters, one after the other."""
    four, two = SearchGroup((0, 1, 2, 3), ((0.25,) * 4,)), SearchGroup((4, 5), ((0.5,) * 2,))
    assert list(rings_across([four, two])) == [((0, 4), 0.5), ((1, 4), 0.5), ((2, 5), 0.5), ((3, 5), 0.5)]
    even = list(rings_across([two, SearchGroup((6, 7), ((0.5,) * 2,))]))
    assert even == [((4, 6), 1.0), ((5, 7), 1.0)]


def test_each_group_has_its_own_shares_and_samples() -> None:
    spec = machines()
    slots = list(spec.slots)
    ratios = [[(2.0, 1.0, 1.0)], [(1.0,)]]
    machine = machine_of(spec, [slots[:3], slots[3:]], ratios=ratios, batches=[2, 3], samples=[2, 3])
    assert not machine.is_even and machine.copies == 4 and machine.ranks == 3
    assert [(lane.shares, lane.batch) for lane in machine.lanes] == [
        ((0.5,), 0.4),
        ((0.25,), 0.4),
        ((1.0,), 0.6),
    ]
    assert machine.shares(0) == (0.5, 0.25, 1.0)
    assert machine.shares(0, SAMPLES_OF_GROUPS) == (0.5, 0.5, 1.0)  # of two slow ranks one has none
