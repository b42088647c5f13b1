"""Fits: what samples are made of is found again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hspmd_compiler.cluster.calibration import Fit
from hspmd_compiler.profiling.fits import Sample, fit, middle, non_negative, spread

FIXED = st.sampled_from([0.0, 1e-6, 3e-5, 2e-3])
PER_FLOP = st.sampled_from([0.0, 1e-12, 2e-11, 1e-9])
PER_BYTE = st.sampled_from([0.0, 1e-11, 4e-10, 1e-8])
SIZES = [(flops, size) for flops in (0.0, 1e4, 1e6, 1e9) for size in (1e3, 1e5, 3e7)]


@given(FIXED, PER_FLOP, PER_BYTE, st.sampled_from([0.5, 1.0]))
def test_known_parts_are_found(fixed: float, per_flop: float, per_byte: float, relative: float) -> None:
    assume(fixed or per_byte)  # else some samples take no time
    truth = Fit(fixed, per_flop, per_byte)
    samples = [Sample(truth.seconds(flops, size), flops, size) for flops, size in SIZES]
    found = fit(samples, relative)
    for sample in samples:
        made = found.seconds(sample.flops, sample.size_bytes)
        assert made == pytest.approx(sample.seconds, rel=1e-5, abs=1e-12)
    assert found.spread < 1e-6
    if fixed and per_flop and per_byte:
        parts = (found.fixed_s, found.per_flop_s, found.per_byte_s)
        assert parts == pytest.approx((fixed, per_flop, per_byte), rel=1e-2)


@given(st.lists(st.floats(-0.2, 0.2), min_size=len(SIZES), max_size=len(SIZES)))
def test_noise_moves_a_fit_by_no_more_than_itself(noise: list[float]) -> None:
    truth = Fit(1e-5, 1e-11, 1e-10)
    samples = [
        Sample(truth.seconds(flops, size) * (1 + off), flops, size)
        for (flops, size), off in zip(SIZES, noise, strict=True)
    ]
    found = fit(samples)
    assert min(found.fixed_s, found.per_flop_s, found.per_byte_s) >= 0
    assert found.spread <= 0.45
    largest = samples[-1]
    assert found.seconds(largest.flops, largest.size_bytes) == pytest.approx(largest.seconds, rel=0.5)


def test_a_part_that_would_be_negative_is_left_out() -> None:
    samples = [Sample(1e-3, 0.0, 1e3), Sample(9e-4, 0.0, 1e6), Sample(8e-4, 0.0, 2e6)]
    found = fit(samples)
    assert found.per_byte_s == 0.0 and found.fixed_s == pytest.approx(9e-4, rel=0.1)


@given(st.integers(0, 10**6))
def test_no_other_choice_of_columns_is_better(seed: int) -> None:
    numbers = np.random.default_rng(seed)
    columns, wanted = numbers.normal(size=(8, 3)), numbers.normal(size=8)
    found = non_negative(columns, wanted)
    error = float(np.sum((columns @ found - wanted) ** 2))
    assert (found >= 0).all()
    for _ in range(20):
        other = np.abs(found + numbers.normal(scale=0.3, size=3) * numbers.integers(0, 2, size=3))
        assert error <= float(np.sum((columns @ other - wanted) ** 2)) + 1e-9


def test_the_middle_leaves_out_what_was_disturbed() -> None:
    assert middle([1.0, 1.1, 9.0, 1.05, 30.0]) == 1.05
    assert spread([1.0, 1.0, 1.0]) == 0.0
    assert spread([1.0, 2.0, 3.0]) == 0.5
