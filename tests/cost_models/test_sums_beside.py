"""Sums that go on while ranks compute: begun by the last to start, one after the other."""

from __future__ import annotations

import pytest

from hspmd_compiler.base.timeline import SpanKind
from hspmd_compiler.cost_models.actions import AwaitSum, Compute, StartSum, TimedAction
from hspmd_compiler.cost_models.estimate import estimate
from hspmd_compiler.cost_models.semantics import Hosts, SendSemantics
from hspmd_compiler.cost_models.simulate import end_times, simulate
from hspmd_compiler.errors import EstimateError
from hspmd_compiler.options import OptimizerConfig

from .priced import cluster, compiled, device

BOTH = (0, 1)
ALIKE = [{"stages": [{"devices": [rank], "layers": 4}], "micro_batches": [2, 2]} for rank in BOTH]


def work(seconds: float) -> Compute:
    return Compute(seconds, SpanKind.BACKWARD)


def start(key: str, seconds: float, busy_s: float = 0.0) -> StartSum:
    return StartSum(key, BOTH, seconds, busy_s=busy_s)


def wait(key: str) -> AwaitSum:
    return AwaitSum(key, BOTH)


def test_a_sum_is_hidden_behind_what_follows() -> None:
    each: list[TimedAction] = [work(1), start("a", 0.5), work(1), wait("a")]
    line = simulate({0: each, 1: each}, SendSemantics())
    assert line.end_s == 2 and line.hidden == 1
    assert [(span.rank, span.start_s, span.end_s) for span in line.beside] == [(0, 1, 1.5), (1, 1, 1.5)]


def test_the_rest_is_waited_for() -> None:
    """Each rank does one sum at a time, in the order of its starts."""
    each: list[TimedAction] = [start("a", 2), work(1), start("b", 2), wait("a"), wait("b")]
    line = simulate({0: each, 1: each}, SendSemantics())
    assert line.end_s == 4 and line.hidden == pytest.approx(1 / 4)


def test_the_last_to_start_begins_it() -> None:
    first: list[TimedAction] = [start("a", 1), work(1), wait("a"), work(1)]
    second: list[TimedAction] = [work(3), start("a", 1), work(1), wait("a")]
    line = simulate({0: first, 1: second}, SendSemantics())
    assert end_times({0: first, 1: second}, SendSemantics()) == {0: 5, 1: 4}
    assert [(span.start_s, span.end_s) for span in line.waits(0)] == [(1, 3)]


def test_on_shared_processors_it_takes_from_those_who_compute() -> None:
    """One core: half a second of each rank's part is the processor's, beside two that compute."""
    each: list[TimedAction] = [start("a", 0.5, 0.5), work(1), wait("a")]
    alone = simulate({0: each, 1: each}, SendSemantics()).end_s
    shared = simulate({0: each, 1: each}, SendSemantics(), Hosts({0: 0, 1: 0}, {0: 1})).end_s
    assert alone == 1 and shared == pytest.approx(3)


def test_a_sum_that_nobody_else_starts_is_named() -> None:
    with pytest.raises(EstimateError, match="never ends"):
        simulate({0: [start("a", 1), wait("a")], 1: [work(1)]}, SendSemantics())


def test_an_estimate_knows_sums_of_gradients() -> None:
    """On a slow link most of their time is hidden, and the step is shorter than with one sum at its end."""
    where = cluster([device(1e8)], [device(1e8)])
    found = [
        estimate(compiled(ALIKE, bucket_bytes=size).program, where, OptimizerConfig(), advise=False)
        for size in (20_000, 0)
    ]
    assert found[0].timeline.hidden is not None and found[0].timeline.hidden > 0.8
    assert found[1].timeline.hidden is None
    assert found[0].step_s < found[1].step_s
