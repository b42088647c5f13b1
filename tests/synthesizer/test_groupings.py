"""Devices in groups, samples and shares by speed, and globs for choices by name."""

from __future__ import annotations

from itertools import product

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hspmd_compiler.base import name_glob
from hspmd_compiler.cluster.cluster import ClusterSpec
from hspmd_compiler.compiler import trace_graph
from hspmd_compiler.strategy.strategy import RecomputeKind, Strategy
from hspmd_compiler.synthesizer.planner.batches import (
    even_samples,
    micro_batches,
    samples_by_speed,
    shares_by_speed,
    strategy_of,
)
from hspmd_compiler.synthesizer.planner.groupings import Grouping, groupings
from hspmd_compiler.synthesizer.planner.memory_ladder import LADDER, lighter
from hspmd_compiler.synthesizer.planner.name_patterns import as_globs
from hspmd_compiler.synthesizer.planner.planned_devices import PlannedDevices, devices_of
from tests.cost_models.priced import cluster, device


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).sum()


GRAPH = trace_graph(Tiny(), {"x": torch.zeros(1, 4)}, 8).graph


def planned(spec: ClusterSpec) -> PlannedDevices:
    return devices_of(spec, GRAPH)


def test_groups_are_even_or_stay_inside_a_node_and_a_kind() -> None:
    slow = device(peak=1e11)
    found = groupings(planned(cluster([device()] * 4, [slow, slow])))
    assert [one.name for one in found] == [
        "6 x 1",
        "3 x 2",
        "2 x 3",
        "1 x 6",
        "1 x 4 + 1 x 2",
        "4 x 1 + 1 x 2",
        "2 x 2 + 2 x 1",
        "1 x 4 + 2 x 1",
    ]
    for one in found:
        assert sorted(device for group in one.groups for device in group) == list(range(6))
    assert found[1].groups == ((0, 1), (2, 3), (4, 5))


def test_many_kinds_of_nodes_are_cut_alike() -> None:
    nodes = [[device(peak=1e12 * (kind + 1))] * 8 for kind in range(8)]
    found = groupings(planned(cluster(*nodes)))
    assert Grouping(tuple((8 * node + low, 8 * node + low + 1) for node in range(8) for low in (0, 2, 4, 6)))
    assert len(found) < 20


@given(
    st.integers(1, 40), st.lists(st.floats(0.1, 100), min_size=1, max_size=4).filter(lambda given: sum(given))
)
def test_no_other_samples_are_done_earlier(batch: int, speeds: list[float]) -> None:
    found = samples_by_speed(batch, speeds)
    assert sum(found) == batch
    last = max(samples / speed for samples, speed in zip(found, speeds, strict=True))
    if batch <= 8:
        for other in product(range(batch + 1), repeat=len(speeds)):
            if sum(other) == batch:
                done = max(samples / speed for samples, speed in zip(other, speeds, strict=True))
                assert last <= done * (1 + 1e-12)


def test_shares_are_whole_and_short() -> None:
    assert shares_by_speed([4.0, 1.0]) == (4, 1)
    assert shares_by_speed([2.0, 2.0]) is None
    assert shares_by_speed([1.0, 3.0]) == (33, 100)
    assert shares_by_speed([1000.0, 1.0]) == (1, 0)


def test_samples_are_cut_in_equal_micro_batches() -> None:
    assert even_samples(10, 4) == (3, 3, 2, 2)
    assert micro_batches(10, 4) == (3, 3, 2, 2)
    assert micro_batches(2, 8) == (1, 1)


def test_a_group_without_samples_is_left_out_where_the_others_keep_their_places() -> None:
    devices = planned(cluster([device()] * 3))
    single = Grouping(((0,), (1,), (2,)))
    found = strategy_of(single, (1, 1, 0), 2, devices)
    assert found is not None
    assert found.devices == (0, 1)
    assert strategy_of(single, (1, 0, 1), 2, devices) is None
    by_id = planned(cluster([device(id=number) for number in (4, 5, 6)]))
    kept = strategy_of(Grouping(((4,), (5,), (6,))), (1, 0, 1), 2, by_id)
    assert kept is not None
    assert kept.devices == (4, 6)


def test_each_rung_takes_less() -> None:
    strategy = strategy_of(Grouping(((0,), (1,))), (10, 6), 4, planned(cluster([device()] * 2)))
    assert strategy is not None
    found = [lighter(strategy, rung) for rung in LADDER]
    assert [one.zero for one in found] == [rung.zero for rung in LADDER]
    assert {one.global_batch for one in found} == {16}
    assert found[1].pipelines[0].micro_batches == (3, 3, 2, 2)
    (again,) = found[-1].pipelines[0].recompute
    assert (again.layers, again.kind) == ((0, 4), RecomputeKind.FULL)
    assert found[-1].pipelines[1].micro_batches == (1,) * 6
    assert LADDER[3].name == "ZeRO-1, micro-batches / 4, selective recomputation"


NAMES = [
    f"{model}layers.{layer}.{rest}"
    for model in ("", "model.")
    for layer in range(3)
    for rest in ("fc.weight", "fc.bias", "mlp.0.weight", "mlp.2.weight")
]


@given(st.dictionaries(st.sampled_from([*NAMES, "weight", "fc.weight"]), st.integers(0, 2), min_size=1))
def test_globs_say_of_each_name_what_was_chosen(chosen: dict[str, int]) -> None:
    """The last glob that names it; and those with `*` name no other."""
    others = [name for name in NAMES if name not in chosen]
    globs = as_globs(chosen, others, name_glob.matches)
    for name, choice in chosen.items():
        named = [value for glob, value in globs if name_glob.matches(glob, name)]
        assert named[-1] == choice
    assert not any("*" in glob and name_glob.matches(glob, other) for glob, _ in globs for other in others)


def test_globs_are_few() -> None:
    chosen = {name: int("weight" in name) for name in NAMES if name.startswith("model")}
    globs = as_globs(chosen, (), name_glob.matches)
    assert globs == [
        ("model.layers.*.fc.weight", 1),
        ("model.layers.*.fc.bias", 0),
        ("model.layers.*.mlp.*.weight", 1),
    ]


def test_a_strategy_without_pipelines_is_never_made() -> None:
    found = strategy_of(Grouping(((0,),)), (4,), 1, planned(cluster([device()])))
    assert isinstance(found, Strategy)
