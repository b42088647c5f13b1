"""Strategies for the devices that are left: same samples, same layers, none of the lost devices."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.strategy.check import check
from hspmd_compiler.strategy.smaller import smaller_strategies
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy

LAYERS = 6


@st.composite
def strategies(draw: st.DrawFn) -> Strategy:
    device = 0
    pipelines = []
    for _ in range(draw(st.integers(1, 3))):
        cuts = sorted(draw(st.sets(st.integers(1, LAYERS - 1), max_size=2)))
        stages = []
        for low, high in zip([0, *cuts], [*cuts, LAYERS], strict=True):
            count = draw(st.integers(1, 3))
            stages.append(StageSpec(tuple(range(device, device + count)), (low, high)))
            device += count
        sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
        pipelines.append(PipelineSpec(tuple(stages), tuple(sizes)))
    return Strategy(tuple(pipelines))


@given(strategies(), st.data())
def test_what_is_left_trains_the_same(strategy: Strategy, data: st.DataObject) -> None:
    devices = [device for each in strategy.pipelines for device in each.devices]
    lost = data.draw(st.sets(st.sampled_from(devices), min_size=1, max_size=2))
    found = list(smaller_strategies(strategy, lost))
    for smaller, note in found:
        assert note
        used = {device for each in smaller.pipelines for device in each.devices}
        assert used <= set(devices) - lost
        assert smaller.global_batch == strategy.global_batch
        check(smaller, num_layers=LAYERS)
    if all(set(each.devices) - lost for each in strategy.pipelines):
        assert found, "each pipeline has a device left"
    if set(devices) == lost:
        assert not found
