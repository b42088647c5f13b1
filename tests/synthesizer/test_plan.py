"""Whole plans: never slower than a baseline, priced as the compiled program is, proved, or refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hspmd_compiler as hspmd
from hspmd_compiler.api import compile, plan
from hspmd_compiler.cluster.cluster import ClusterSpec, DeviceSpec, NodeSpec
from hspmd_compiler.cluster.link import LinkSpec
from hspmd_compiler.errors import ClusterError, EstimateError, OptionError
from hspmd_compiler.pages.plan_page import plan_sections
from hspmd_compiler.pages.sections import sections_to_text
from hspmd_compiler.synthesizer.planner.explain import explain, explain_all
from hspmd_compiler.synthesizer.planner.plan import Plan
from tests.cost_models.priced import GIB, INSIDE, NIC, cluster, device

Expect = Callable[[str, str], None]
Made = tuple[nn.Module, dict[str, Tensor]]


class Classifier(nn.Module):
    """Three layers, the last one another."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return functional.cross_entropy(self.head(x), y)


def build(width: int = 16) -> Made:
    return Classifier(width), {"x": torch.zeros(2, width), "y": torch.zeros(2, dtype=torch.int64)}


def wide() -> Made:
    """Parameters are most of it."""
    return build(512)


FAST, SLOW = device(peak=1e10), device(peak=1e10, pace=4)
MIXED = cluster([FAST, FAST], [SLOW, SLOW])


def proved(found: Plan, model: Callable[[], Made], spec: ClusterSpec) -> None:
    """The strategy compiles, is exact, and costs what the plan says."""
    program = compile(model, strategy=found.strategy, cluster=spec)
    program.verify(values=True)
    assert program.estimate(spec).step_s == found.estimate.step_s


@pytest.mark.parametrize(
    "spec",
    [MIXED, cluster([FAST]), cluster([FAST] * 3), cluster([device(id=7)], [device(id=3, pace=2)])],
    ids=["mixed", "one device", "alike", "by id"],
)
def test_a_plan_is_exact_and_no_baseline_is_quicker(spec: ClusterSpec) -> None:
    found = plan(build, cluster=spec, global_batch=10)
    proved(found, build, spec)
    assert found.strategy.global_batch == 10
    assert found.bound_s <= found.estimate.step_s
    assert {"DP-EV", "DP-CP"} & {one.name for one in (found.chosen, *found.runner_ups)}
    assert all(one.step_s >= found.estimate.step_s for one in found.runner_ups)


def test_slow_devices_get_less() -> None:
    """Samples by speed take less than half as long as even ones, where computing is all."""
    links = LinkSpec(1e15, 0.0)
    nodes = (NodeSpec("a", (device(peak=1e9), device(peak=1e9, pace=4)), links, links),)
    found = plan(build, cluster=ClusterSpec(nodes), global_batch=4000)
    by_name = {one.name: one for one in (found.chosen, *found.runner_ups)}
    fair, even = by_name["DP-CP"], by_name["DP-EV"]
    assert [pipeline.batch_size for pipeline in fair.strategy.pipelines] == [3200, 800]
    assert [pipeline.batch_size for pipeline in even.strategy.pipelines] == [2000, 2000]
    assert fair.step_s < even.step_s / 2
    assert found.gap < 0.2


def test_samples_are_those_of_the_example_for_each_device() -> None:
    assert plan(build, cluster=MIXED).strategy.global_batch == 8
    assert hspmd.plan is plan


def test_what_does_not_fit_is_made_lighter() -> None:
    """Here activations are most of it, so that there are more micro-batches."""
    whole = plan(build, cluster=MIXED, global_batch=512)
    every = [one.estimate for one in (whole.chosen, *whole.runner_ups) if one.estimate is not None]
    least = int(0.7 * min(max(rank.memory.peak.total for rank in one.ranks) for one in every))
    spec = cluster([device(memory=least)] * 2, [device(memory=least, pace=4)] * 2)
    found = plan(build, cluster=spec, global_batch=512)
    assert not found.estimate.misfits
    assert {len(pipeline.micro_batches) for pipeline in whole.strategy.pipelines} == {1}
    assert {len(pipeline.micro_batches) for pipeline in found.strategy.pipelines} == {4}
    proved(found, build, spec)


def test_what_can_not_fit_is_refused(expect: Expect) -> None:
    spec = cluster([device(memory=1 << 20), device(memory=1 << 19, pace=4)])
    with pytest.raises(EstimateError) as error:
        plan(wide, cluster=spec, global_batch=8)
    expect("plan/no_memory", error.value.text())


def test_all_that_a_cluster_lacks_is_one_error(expect: Expect) -> None:
    bare, half = DeviceSpec("cpu"), replace(device(), memory=None)
    spec = ClusterSpec(
        (
            NodeSpec("a", (device(), half), INSIDE, None),
            NodeSpec("b", (bare, bare), None, None),
        )
    )
    with pytest.raises(EstimateError) as error:
        plan(build, cluster=spec)
    expect("plan/no_figures", error.value.text())


@pytest.mark.parametrize("precision", ["model", "bfloat16"])
def test_a_peak_that_the_models_type_needs_is_told_before_the_trace(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"model": "float64", "bfloat16": "float32"}[precision]
    needed = {"model": "float32", "bfloat16": "bfloat16"}[precision]
    spec = cluster([replace(device(), kind="cuda A100-SXM4-80GB", peaks={other: 1e12})])
    monkeypatch.setattr("hspmd_compiler.compiler.trace_graph", None)
    with pytest.raises(EstimateError, match=f"peak in {needed} of"):
        plan(build, cluster=spec, precision=precision)


def test_devices_of_speed_0_are_one_error(expect: Expect) -> None:
    still = DeviceSpec("cpu", memory=GIB, peaks={"float32": 0.0}, memory_bandwidth=1e9)
    endless = device(pace=0.0)
    with pytest.raises(ClusterError) as error:
        plan(build, cluster=ClusterSpec((NodeSpec("a", (device(), still, endless), INSIDE, NIC),)))
    expect("plan/speed_0", error.value.text())


@pytest.mark.parametrize(
    "options",
    [
        {"global_batch": 0},
        {"global_batch": 2.5},
        {"space": "wide", "cost": "cheap", "method": "luck"},
        {"cost": "hap"},
    ],
    ids=["no_samples", "half_samples", "unknown", "cost_of_another_space"],
)
def test_bad_options_are_told(
    options: dict[str, object], request: pytest.FixtureRequest, expect: Expect
) -> None:
    with pytest.raises(OptionError) as error:
        plan(build, cluster=MIXED, **options)  # type: ignore[arg-type]
    expect(f"plan/{request.node.callspec.id}", error.value.text())


def test_samples_that_no_memory_holds_are_refused_at_once(expect: Expect) -> None:
    """Micro-batches by the ten thousand would not make them fewer."""
    with pytest.raises(EstimateError) as error:
        plan(build, cluster=MIXED, global_batch=10**9)
    expect("plan/no_room_for_samples", error.value.text())


def test_one_device_is_a_candidate_where_the_quickest_can_not_stand_alone() -> None:
    """Devices without ids are left out from the end: of the slow one first, the slow one it is."""
    found = plan(build, cluster=cluster([device(pace=2)], [device()]), global_batch=8)
    (alone,) = (one for one in (found.chosen, *found.runner_ups) if one.name == "one device")
    assert alone.strategy.devices == (0,)


def test_a_plan_is_a_line_in_a_terminal() -> None:
    found = plan(build, cluster=MIXED, global_batch=8)
    assert repr(found).startswith(f"Plan({found.chosen.name!r}, step_s=")
    assert len(repr(found)) < 100
    assert len(repr(found.chosen)) < 100_000


def test_where_a_baseline_is_the_plan_the_best_searched_program_is_explained() -> None:
    """And why devices stand idle is told."""
    found = plan(build, cluster=MIXED, global_batch=8)
    assert found.chosen.name == "one device"
    assert found.searched in found.runner_ups
    assert found.searched is not None
    told, wrong = explain_all(
        found.searched.candidate.found, ["layers.0", "layers.0.weight", "layers.0.wieght"]
    )
    assert [one.name for one in told].count("layers.0.weight") == 1
    assert wrong is not None and "layers.0.weight" in wrong.text()
    page = sections_to_text(plan_sections(found, told))
    assert (
        f"of {found.searched.name!r}, the quickest that was searched; the plan, 'one device', was not" in page
    )
    assert "3 of 4 devices are left out: with all, the quickest step is" in page


def test_nothing_is_explained_of_a_baseline() -> None:
    with pytest.raises(OptionError, match="nothing was considered"):
        explain(None, "layers.0")


class Odd(nn.Module):
    """An operator that needs its features whole, between two that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, 256), nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.logcumsumexp(self.first(x), 1)).sum()


def odd() -> Made:
    return Odd(), {"x": torch.zeros(2, 256)}


def test_what_keeps_a_value_whole_is_told_of_the_plan(caplog: pytest.LogCaptureFixture) -> None:
    """Of the others it is kept: tensor parallelism has it whole, and the plan cuts samples instead."""
    with caplog.at_level(logging.WARNING, "hspmd_compiler"):
        found = plan(odd, cluster=MIXED, global_batch=8)
    assert not caplog.records
    assert set(found.chosen.warnings) <= set(found.notes)
    (split,) = (one for one in found.runner_ups if one.name == "TP 4")
    (told,) = split.warnings
    assert told.startswith("aten.logcumsumexp.default keeps whole what tensor parallelism could split")
    proved(found, odd, MIXED)


class Read(nn.Module):
    """One that HAP's operators make up."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList((nn.Linear(32, 64), nn.Linear(64, 8)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = torch.relu(self.layers[0](x))
        scores = functional.log_softmax(self.layers[1](x), 1)
        return functional.nll_loss(scores, y, reduction="sum")


def readable() -> Made:
    return Read(), {"x": torch.zeros(2, 32), "y": torch.zeros(2, dtype=torch.int64)}


@pytest.mark.parametrize("cost", ["hap", "cluster"])
def test_the_space_of_hap_gives_a_strategy(cost: str) -> None:
    """Beside the baselines, with what its formulas leave out."""
    found = plan(readable, cluster=MIXED, global_batch=400, space="hap", cost=cost)
    names = [one.name for one in (found.chosen, *found.runner_ups)]
    assert sorted(names) == sorted(["HAP's program", "DP-EV", "DP-CP", "one device", "TP 2 x DP 2", "TP 4"])
    (ours,) = (one for one in (found.chosen, *found.runner_ups) if one.name == "HAP's program")
    assert not ours.refused
    compile(readable, strategy=ours.strategy, cluster=MIXED).verify(values=True)
    counted = [note for note in found.notes if note.startswith("HAP's cost")]
    assert bool(counted) == (cost == "hap")
    assert any("DP-EV" in note for note in counted) == (cost == "hap")


def test_each_way_of_holding_has_its_price() -> None:
    """The chosen one is the cheapest, and costs what the plan was taken for."""
    found = plan(wide, cluster=MIXED, global_batch=8)
    assert found.found is not None
    told = explain(found.found, "layers.0")
    assert {"layers.0.weight", "layers.0.bias"} <= {one.name for one in told}
    for one in told:
        assert [way.price_s for way in one.ways] == sorted(way.price_s for way in one.ways)
        assert one.ways[0].price_s == pytest.approx(found.found.price_s)
    (weight,) = (one for one in told if one.name == "layers.0.weight")
    assert [way.is_chosen for way in weight.ways].count(True) == 1
    assert weight.ways[0].is_chosen
    assert "explain layers.0.weight" in [section.key for section in plan_sections(found, told)]


def test_an_unknown_name_is_told_with_near_ones() -> None:
    found = plan(wide, cluster=MIXED, global_batch=8)
    with pytest.raises(OptionError, match=r"the plan knows no 'layers.0.wieght'(.|\n)*layers.0.weight"):
        explain(found.found, "layers.0.wieght")


def test_why_a_candidate_is_refused_is_told_with_its_value() -> None:
    """Five ranks can't share four heads."""
    found = plan("gpt2-tiny", cluster=cluster([device()] * 5), global_batch=5)
    (split,) = (one for one in found.runner_ups if one.name == "TP 5")
    assert split.refused.startswith(
        "one value breaks a rule of a strategy: pipelines[0].stages[0].devices 5 devices"
    )
    assert f"what was refused\nTP 5: {split.refused}" in sections_to_text(plan_sections(found))


def test_the_page_tells_all(expect: Expect) -> None:
    found = plan(build, cluster=MIXED, global_batch=1000)
    expect("plan/page", sections_to_text(plan_sections(found)))
