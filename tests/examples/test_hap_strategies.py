"""HAP's programs as strategies: uneven slices, all its exchanges, experts; each equals one device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

import hspmd_compiler as hspmd
from hspmd_compiler.cluster.new import NewCluster, new_cluster
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.synthesizer.hap.calls import record
from hspmd_compiler.synthesizer.hap.costs import Bandwidths, HapMachine
from hspmd_compiler.synthesizer.hap.plan import plan_hap
from hspmd_compiler.synthesizer.hap.realise import realise_hap
from hspmd_compiler.synthesizer.hap.search import VectorFor

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "program_search"
SPEEDS = [4e6, 1e6, 2e6]
BATCH = 9
LAYERED = {"layers": 2, "devices": 2, "hidden": 16, "heads": 2, "ffn": 24, "batch": BATCH}
WORDS = {"vocab": 50, "seq": 8}
DEAR_SUMS = Bandwidths(3e5, 3e4, 3e5, 9e7)
"""All-gather, all-reduce, reduce-scatter, all-to-all: exchanges are cheaper than replicas."""


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import models as module

    return module


@pytest.mark.parametrize(
    ("name", "sizes", "layers", "says"),
    [
        ("bert_moe", {**LAYERED, **WORDS}, 2, {"layers.*.einsum": "S1(3,0,1)", "layers.0.norm1": "D"}),
        pytest.param(
            *("vgg19", {"channels": 4, "ffn": 24, "batch": BATCH}, 19),
            *({"features.0": "S0(5,1,3)", "features.36": "D"},),
            marks=pytest.mark.slow,
        ),
        pytest.param("vit", {**LAYERED, "image": 16}, 2, {"cat": "S0(5,1,3)"}, marks=pytest.mark.slow),
        pytest.param("bert", {**LAYERED, **WORDS}, 2, {"encoder": "S0(5,1,3)"}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("extra_ps", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_program_equals_one_device(
    models: ModuleType,
    name: str,
    sizes: Mapping[str, int],
    layers: int,
    says: Mapping[str, str],
    extra_ps: bool,
) -> None:
    model, inputs = getattr(models, name)(**sizes)
    graph = record(model, inputs, anchors=True).graph()
    plan = plan_hap(graph, HapMachine.of(SPEEDS, DEAR_SUMS), VectorFor.TENSOR, extra_ps)
    stage = StageSpec((0, 1, 2), (0, layers), shares=(4, 1, 2))
    strategy = realise_hap(plan, graph, SPEEDS, Strategy((PipelineSpec((stage,), (BATCH,)),)))
    if not extra_ps:
        said = {wish.at: wish.to for wish in strategy.layouts}
        assert said.items() >= says.items()
    assert {override.match.rpartition(".")[2] for override in strategy.overrides} >= {"weight", "bias"}
    hspmd.compile(model, inputs, strategy=strategy).verify(values=True)


def test_a_plan_of_haps_space_says_its_exchanges(models: ModuleType) -> None:
    """Gating is a function that HAP knows by its name; experts lie over devices."""
    model, inputs = models.bert_moe(**{**LAYERED, **WORDS, "batch": 2})
    machines = new_cluster(NewCluster(["2xV100-SXM2-16GB", "2xP100-SXM2-16GB"], {"nic": "10Gbit"}))
    plan = hspmd.plan(model, inputs, cluster=machines.cluster, space="hap", cost="hap", global_batch=8)
    (found,) = (one for one in (plan.chosen, *plan.runner_ups) if one.name == "HAP's program")
    said = {wish.at: wish.to for wish in found.strategy.layouts}
    assert said == {
        "y": "S0(2,2,2,2)",
        "encoder": "S0(2,2,2,2)",
        "layers.*.einsum": "S1(1,1,1,1)",
        "layers.*.einsum#3": "S0(2,2,2,2)",
    }
    hspmd.compile(model, inputs, strategy=found.strategy).verify(values=True)
