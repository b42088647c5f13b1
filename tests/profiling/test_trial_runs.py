"""What ranks hold beyond their tensors, found from trial runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.profiling.trial_runs import Held, fit_held
from hspmd_compiler.profiling.trials import TRIALS

MIB = 1 << 20


@given(
    fixed=st.integers(0, 50 * MIB),
    share=st.floats(0, 0.5),
    tensors=st.lists(st.integers(20 * MIB, 900 * MIB), min_size=3, max_size=6, unique=True),
)
def test_both_parts_are_found_again(fixed: int, share: float, tensors: list[int]) -> None:
    platform = 280 * MIB
    found = fit_held([Held(each, platform + each + fixed + int(share * each)) for each in tensors], platform)
    for each in tensors:
        assert each + found.extra(each) == pytest.approx(each + fixed + share * each, rel=1e-3)
    assert found.spread < 1e-3


def test_no_part_is_negative() -> None:
    found = fit_held([Held(100 * MIB, 90 * MIB), Held(200 * MIB, 190 * MIB)], 0)
    assert (found.fixed_bytes, found.share) == (0, 0.0)
    assert found.spread > 0.05


def test_trials_have_every_kind_of_group() -> None:
    shapes = {tuple(len(stages) for stages in trial.pipelines) for trial in TRIALS}
    assert {(1,), (2,), (1, 1)} <= shapes
