"""Layer curves, fits without negative parts, links and memory of a stage."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hspmd_compiler.cost_models.published.layer_profiles import SizeCurve, repaired, size_curve
from hspmd_compiler.cost_models.published.nonnegative import affine_fit, nonnegative_fit
from hspmd_compiler.cost_models.published.ring import all_gather_s, all_reduce_s, link_of, message_s
from hspmd_compiler.cost_models.published.stage_memory import StageMemory, fits, in_flight
from hspmd_compiler.errors import EstimateError

POINTS = st.dictionaries(st.integers(1, 64), st.floats(1e-4, 10.0), min_size=1, max_size=6).map(
    lambda found: list(found.items())
)


@given(POINTS)
def test_a_larger_micro_batch_is_never_faster(points: list[tuple[int, float]]) -> None:
    curve = size_curve(points)
    sizes = [0.5, *range(1, 70), 128, 1000]
    times = [curve.seconds(size) for size in sizes]
    assert all(two >= one - 1e-12 for one, two in pairwise(times))
    assert times[0] >= 0


@given(POINTS)
def test_measured_sizes_keep_their_times(points: list[tuple[int, float]]) -> None:
    """But for noise: what is above a larger one's time comes down to it, and nothing else changes."""
    curve = size_curve(points)
    for size, seconds in points:
        larger = min(other for one, other in points if one >= size)
        assert curve.seconds(size) == larger <= seconds


def test_noise_is_repaired() -> None:
    assert repaired([(1, 2.4), (2, 1.5), (4, 1.8)]) == ((1, 1.5), (2, 1.5), (4, 1.8))


def test_outside_what_was_measured_it_is_affine() -> None:
    curve = size_curve([(2, 3.0), (4, 5.0), (8, 9.0)])
    assert curve.seconds(16) == pytest.approx(17.0)
    assert curve.seconds(1) == pytest.approx(2.0)
    assert curve.seconds(3) == pytest.approx(4.0)


def test_one_point_grows_by_what_a_sample_costs() -> None:
    assert size_curve([(1, 3.0)], more_s=1.0).seconds(5) == 7.0
    assert size_curve([(1, 3.0)]).seconds(5) == 15.0
    assert size_curve([(1, 3.0)], more_s=4.0).seconds(2) == 6.0, "no more than the first sample"


def test_sizes_that_make_no_curve() -> None:
    for points in ((), ((0, 1.0),), ((2, 1.0), (1, 2.0))):
        with pytest.raises(EstimateError, match="a layer's times can't be read"):
            SizeCurve(points)


MATRIX = st.lists(
    st.lists(st.floats(-3, 3, allow_subnormal=False), min_size=3, max_size=3), min_size=4, max_size=8
)


@given(MATRIX, st.lists(st.floats(-3, 3, allow_subnormal=False), min_size=8, max_size=8))
@example([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, -9e-156], [0.0] * 3], [0.0, 1.0, -2.0, 0.0])
def test_the_fit_is_the_best_without_negative_parts(rows: list[list[float]], values: list[float]) -> None:
    """No small step from it, that stays at or above zero, comes nearer."""
    matrix, wanted = np.array(rows), np.array(values[: len(rows)])
    found = np.array(nonnegative_fit(rows, values[: len(rows)]))
    assert (found >= 0).all()
    missed = float(np.sum((matrix @ found - wanted) ** 2))
    for column in range(3):
        for step in (1e-2, -1e-2, 1.0, -1.0):
            other = found.copy()
            other[column] = max(0.0, other[column] + step)
            assert float(np.sum((matrix @ other - wanted) ** 2)) >= missed - 1e-7


@given(st.floats(0, 2), st.floats(0, 2))
def test_an_affine_price_is_found_again(fixed: float, each: float) -> None:
    if fixed + each < 1e-3:
        return
    fit = affine_fit([(size, fixed + each * size) for size in (1, 2, 4, 8)])
    assert fit(16) == pytest.approx(fixed + 16 * each, rel=1e-6, abs=1e-9)


def test_nothing_finite_to_fit_is_told() -> None:
    for rows, values in (([], []), ([[1.0]], [float("nan")])):
        with pytest.raises(EstimateError, match="nothing to fit"):
            nonnegative_fit(rows, values)


def test_a_link_and_what_goes_over_it() -> None:
    link = link_of([(size, 1e-5 + size / 1e9) for size in (1e5, 1e6, 1e7)])
    assert link.bandwidth == pytest.approx(1e9)
    assert link.latency == pytest.approx(1e-5)
    assert message_s(link, 1e9) == pytest.approx(1.00001)
    assert message_s(link, 0) == 0.0
    assert all_reduce_s(link, 1e9, 4) == pytest.approx(6e-5 + 1.5)
    assert all_reduce_s(link, 1e9, 4, sharing=8) == pytest.approx(6e-5 + 12.0)
    assert all_gather_s(link, 1e9, 4) == pytest.approx(3e-5 + 0.75)
    assert all_reduce_s(link, 1e9, 1) == 0.0


def test_memory_of_a_stage() -> None:
    memory = StageMemory(
        parameters=1e9, kept_bytes=2e9, transient_bytes=5e8, boundary_bytes=1e8, platform_bytes=4e9
    )
    assert memory.peak_bytes(in_flight(0, 4, 8), 4) == 20e9 + 8e9 + 5e8 + 3e8 + 4e9
    assert memory.peak_bytes(in_flight(0, 1, 8), 1) == 20e9 + 2e9 + 5e8 + 4e9
    assert in_flight(0, 4, 1) == 1, "never more than there are micro-batches"
    assert fits(95, 100)
    assert not fits(96, 100)
