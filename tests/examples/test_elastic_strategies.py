"""Strategies of the elastic example: for the devices of their traces; what is lost somebody else has."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from hspmd_compiler.base.devices import DeviceKind
from hspmd_compiler.cluster.device_trace import check_devices, read_device_trace
from hspmd_compiler.compiler import lower_graph, trace_graph
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.program.program import RankProgram
from hspmd_compiler.strategy.formats.read import read_strategy
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.switching.links import links_of
from hspmd_compiler.switching.plan import plan_switch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "elastic_training"
LIMIT = 400
"""Seconds, on a machine that runs other tests beside it."""
CLUSTERS = {"homogeneous": ("c1", "c2", "c3"), "heterogeneous": ("c4", "c5", "c6", "c7")}


def strategies(cluster: str) -> list[Strategy]:
    return [read_strategy(EXAMPLE / cluster / f"{name}.yaml") for name in CLUSTERS[cluster]]


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_each_is_for_the_devices_of_its_moment(cluster: str) -> None:
    trace = read_device_trace(EXAMPLE / cluster / "trace.yaml")
    check_devices(trace, trace.devices)
    read = strategies(cluster)
    assert [tuple(sorted(each.devices)) for each in read] == [each.present for each in trace.moments]
    assert {each.global_batch for each in read} == {32}


@cache
def graph() -> LogicalGraph:
    sys.path.insert(0, str(EXAMPLE))
    try:
        from small_transformer import build
    finally:
        sys.path.remove(str(EXAMPLE))
    model, inputs = build()
    return trace_graph(model, inputs, 32).graph


@pytest.mark.parametrize("cluster", [pytest.param(name, marks=pytest.mark.slow) for name in CLUSTERS])
def test_survivors_have_all_of_the_state(cluster: str) -> None:
    """No checkpoint is needed where a device is lost, though its processes took their state along."""
    for before, after in pairwise(strategies(cluster)):
        held, needed = programs(before), programs(after)
        alive = {device: own for device, own in held.items() if device in needed}
        links = links_of(None, sorted(held))
        plan = plan_switch(alive, needed, links, moments=("exp_avg", "exp_avg_sq"))
        assert plan.classes and not plan.orphans()


def programs(strategy: Strategy) -> dict[int, RankProgram]:
    """By device, which is the world rank here."""
    made = lower_graph(graph(), strategy, DeviceKind.CPU).program
    return {own.device: own for own in made.ranks}


@pytest.mark.slow
def test_the_demo_ends_with_equal_losses() -> None:
    """Two devices lost of eight, by one command."""
    command = [sys.executable, str(EXAMPLE / "demo.py"), "homogeneous"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal: losses of 24 steps" in done.stdout and "NOT" not in done.stdout
    assert "C2" in done.stdout and "C3" in done.stdout
