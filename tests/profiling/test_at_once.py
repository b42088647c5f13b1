"""What ranks that compute at once take from each other, by clocks that are simulated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.profiling.at_once import counts_at_once, slowed_by


def test_one_some_and_all_compute_at_once() -> None:
    assert counts_at_once(1, 8) == [1]
    assert counts_at_once(4, 2) == [1, 2, 4]
    assert counts_at_once(6, 3) == [1, 2, 3, 4, 6]
    assert counts_at_once(4, 64) == [1, 2, 4]


@given(
    alone=st.floats(0.3, 1.0),
    crowded=st.floats(1.0, 3.0),
    drift=st.lists(st.floats(0.2, 5.0), min_size=1, max_size=7),
)
def test_factors_are_found_again_whatever_a_turn_is_slowed_by(
    alone: float, crowded: float, drift: list[float]
) -> None:
    """A turn that other work slows as a whole says the same as any other."""
    factors = {1: alone, 2: 1.0, 4: crowded}
    taken = [
        [{count: slow * factor for count, factor in factors.items() if rank < count} for slow in drift]
        for rank in range(4)
    ]
    found = slowed_by(taken, 2)
    assert [each.ranks for each in found] == [1, 2, 4]
    assert [each.factor for each in found] == pytest.approx([alone, 1.0, crowded])
    assert all(each.spread < 1e-9 for each in found)


def test_one_disturbed_turn_does_not_count() -> None:
    turns = [{1: 0.9, 2: 1.0}] * 4 + [{1: 5.0, 2: 1.0}]
    one, two = slowed_by([turns, [{2: 1.0}] * 5], 2)
    assert (one.factor, two.factor) == (0.9, 1.0)
