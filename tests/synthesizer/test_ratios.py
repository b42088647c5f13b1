"""Closed-form ratios against the linear program, and the linear program against ratios that are drawn."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.synthesizer.ratios import LinearForm, RatioProblem, solve, vertices

SPEED = st.sampled_from([1.0, 2.0, 3.5, 8.0])
FACTOR = st.floats(0.01, 10.0)


def counted(speeds: list[float]) -> tuple[list[float], tuple[int, ...]]:
    kinds = sorted(set(speeds), reverse=True)
    return kinds, tuple(speeds.count(kind) for kind in kinds)


def two_maxima(kinds: list[float], compute: float, exchange: float) -> tuple[tuple[LinearForm, ...], ...]:
    """F * max(b / s) + G * max(b)."""
    return (
        tuple(LinearForm({(0, k): compute / speed}) for k, speed in enumerate(kinds)),
        tuple(LinearForm({(0, k): exchange}) for k in range(len(kinds))),
    )


@settings(max_examples=25, deadline=None)
@given(st.lists(SPEED, min_size=1, max_size=9), FACTOR, FACTOR)
def test_the_best_vertex_is_the_optimum(speeds: list[float], compute: float, exchange: float) -> None:
    kinds, counts = counted(speeds)
    problem = RatioProblem(counts, 1, two_maxima(kinds, compute, exchange))
    solved = solve(problem)
    assert solved is not None
    prices = [
        compute * max(b / s for b, s in zip(vector, speeds, strict=True)) + exchange * max(vector)
        for vector in vertices(speeds)
    ]
    assert min(prices) == pytest.approx(problem.price(solved), rel=1e-7)


@given(st.lists(SPEED, min_size=1, max_size=9))
def test_vertices_go_from_proportional_to_even(speeds: list[float]) -> None:
    found = vertices(speeds)
    assert len(found) == len(set(speeds))
    assert found[0] == pytest.approx([speed / sum(speeds) for speed in speeds])
    assert found[-1] == pytest.approx([1 / len(speeds)] * len(speeds))
    assert all(sum(vector) == pytest.approx(1) for vector in found)


def test_a_device_of_speed_0_gets_nothing() -> None:
    assert vertices([4.0, 0.0, 2.0]) == (pytest.approx((2 / 3, 0, 1 / 3)), pytest.approx((0.5, 0, 0.5)))


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_no_drawn_ratios_are_cheaper(data: st.DataObject) -> None:
    """Roofline terms, two vectors in one term, boxes."""
    counts = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    forms = st.builds(
        lambda a, b, c, d: LinearForm({(0, 0): a, (0, 1): b, (1, 0): c}, d), *[st.floats(0, 5)] * 4
    )
    terms = data.draw(st.lists(st.lists(forms, min_size=1, max_size=3).map(tuple), min_size=1, max_size=3))
    problem = RatioProblem(counts, 2, tuple(terms), boxes={(0, 0): (0.0, 0.9 / counts[0])})
    solved = solve(problem)
    assert solved is not None
    assert solved[0][0] <= 0.9 / counts[0] + 1e-6
    for _ in range(5):
        parts = [data.draw(st.floats(0, 0.9)), data.draw(st.floats(0, 1))]
        drawn = [(part / counts[0], (1 - part) / counts[1]) for part in parts]
        assert problem.price(solved) <= problem.price(drawn) * (1 + 1e-6) + 1e-6


def test_limits_move_shares_and_may_be_too_tight() -> None:
    """A fast device that holds half a share's memory; then none that holds anything."""
    terms = two_maxima([4.0, 1.0], 1.0, 0.0)
    free = solve(RatioProblem((1, 1), 1, terms))
    assert free == (pytest.approx((0.8, 0.2)),)
    limit = LinearForm({(0, 0): 10.0}), 5.0
    assert solve(RatioProblem((1, 1), 1, terms, (limit,))) == (pytest.approx((0.5, 0.5)),)
    both = limit, (LinearForm({(0, 1): 10.0}), 4.0)
    assert solve(RatioProblem((1, 1), 1, terms, both)) is None
