"""A schedule that is left open is the cheapest by simulation of those that fit; all are priced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hspmd_compiler.api import compile
from hspmd_compiler.artifact.store import Artifact
from hspmd_compiler.cluster.cluster import ClusterSpec
from hspmd_compiler.cluster.link import LinkSpec
from hspmd_compiler.cost_models.estimate import estimate_artifact
from hspmd_compiler.errors import StrategyError
from hspmd_compiler.strategy.form import strategy_from
from hspmd_compiler.strategy.strategy import ScheduleKind
from tests.cost_models.priced import GIB, cluster, compiled, device

FOUR: dict[str, Any] = {
    "stages": [{"devices": [at], "layers": 1} for at in range(4)],
    "micro_batches": [1] * 8,
}
NAMED = ("1f1b", "gpipe", "zb-h1")


def chosen(spec: ClusterSpec, **more: Any) -> str:
    strategy = {"pipelines": [FOUR], "schedule": "auto", **more}
    artifact = compile("llama-tiny", strategy=strategy, cluster=spec).artifact
    found = strategy_from(artifact.strategy)
    assert found.schedule is not ScheduleKind.AUTO
    return found.schedule.value


def of(name: str) -> Artifact:
    return compiled([FOUR], schedule=name)


def test_the_quickest_that_fits_is_taken() -> None:
    """Of equal devices that which leaves weights to later; with less memory than it needs, another."""
    spec = cluster([device(peak=1e11)] * 4)
    priced = {name: estimate_artifact(of(name), spec) for name in NAMED}
    assert chosen(spec) == "zb-h1" == min(NAMED, key=lambda name: priced[name].step_s)
    need = {name: [one.memory.peak.total for one in priced[name].ranks] for name in NAMED}
    assert max(need["1f1b"][1:]) < max(need["zb-h1"][1:])
    small = [device(peak=1e11, memory=int(1.06 * bytes_)) for bytes_ in need["1f1b"]]
    assert chosen(cluster(small)) == "1f1b"


def test_gpipe_where_memory_allows() -> None:
    """Where a message takes as long as a pass, nobody waits for its answer; with less memory, another."""

    def far(memory: int) -> ClusterSpec:
        spec = cluster(*([device(peak=1e12, memory=memory)] for _ in range(4)))
        return replace(spec, nodes=tuple(replace(node, nic=LinkSpec(1e9, 1e-3)) for node in spec.nodes))

    priced = {name: estimate_artifact(of(name), far(GIB)) for name in NAMED}
    assert priced["gpipe"].step_s < 0.9 * min(priced["1f1b"].step_s, priced["zb-h1"].step_s)
    assert chosen(far(GIB)) == "gpipe"
    need = max(one.memory.peak.total for one in priced["zb-h1"].ranks)
    assert need < 0.9 * max(one.memory.peak.total for one in priced["gpipe"].ranks)
    assert chosen(far(int(1.06 * need))) == "zb-h1"


def test_without_prices_it_is_refused(expect: Callable[[str, str], None]) -> None:
    with pytest.raises(StrategyError) as caught:
        compile("llama-tiny", strategy={"pipelines": [FOUR], "schedule": "auto"})
    expect("schedule/auto_without_cluster", str(caught.value))
    one = {"stages": [{"devices": [0], "layers": 4}], "micro_batches": [1, 1]}
    alone = compile("llama-tiny", strategy={"pipelines": [one], "schedule": "auto"})
    assert strategy_from(alone.artifact.strategy).schedule is ScheduleKind.ONE_F_ONE_B


@pytest.mark.parametrize("name", ["sizes", "context"])
def test_where_it_is_not_chosen_it_is_told(name: str, expect: Callable[[str, str], None]) -> None:
    other = {**FOUR, "stages": [{"devices": [4 + at], "layers": 1} for at in range(4)]}
    more: dict[str, Any] = {"sizes": {"samples": [1, 8]}, "context": [{"pipelines": [0, 1]}]}
    with pytest.raises(StrategyError) as caught:
        strategy_from({"pipelines": [FOUR, other], "schedule": "auto", name: more[name]})
    expect(f"schedule/auto_{name}", str(caught.value))
