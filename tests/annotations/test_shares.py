"""Rounding of shares, against every way to hand the units out."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.annotations.split import even_lengths
from hspmd_compiler.errors import InternalError
from hspmd_compiler.layout.shares import assign_units

WEIGHTS = st.lists(st.integers(0, 9) | st.floats(0, 4, width=16), min_size=1, max_size=5).filter(any)


def splits(units: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to hand units out."""
    if parts == 1:
        yield (units,)
        return
    for first in range(units + 1):
        for rest in splits(units - first, parts - 1):
            yield (first, *rest)


def last_done(counts: tuple[int, ...], weights: list[int | float]) -> Fraction | float:
    """The time of whoever works longest."""
    return max(
        Fraction(count) / Fraction(weight) if weight else inf * count if count else 0
        for count, weight in zip(counts, weights, strict=True)
    )


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 9), WEIGHTS)
def test_no_other_split_is_done_earlier(units: int, weights: list[int | float]) -> None:
    counts = assign_units(units, weights)
    assert sum(counts) == units
    assert all(weight or not count for count, weight in zip(counts, weights, strict=True))
    best = min(last_done(each, weights) for each in splits(units, len(weights)))
    assert last_done(counts, weights) == best
    assert counts == one_by_one(units, weights)


def one_by_one(units: int, weights: list[int | float]) -> tuple[int, ...]:
    counts = [0] * len(weights)
    able = [place for place, weight in enumerate(weights) if weight]
    for _ in range(units):
        first = min(able, key=lambda place: ((counts[place] + 1) / Fraction(weights[place]), counts[place]))
        counts[first] += 1
    return tuple(counts)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=9).filter(any), st.integers(1, 50))
def test_lengths_are_kept(lengths: list[int], times: int) -> None:
    assert assign_units(times * sum(lengths), lengths) == tuple(times * length for length in lengths)


@given(st.integers(0, 500), st.integers(1, 64), st.integers(1, 9))
def test_equal_weights_are_an_even_split(units: int, parts: int, weight: int) -> None:
    assert assign_units(units, [weight] * parts) == even_lengths(units, parts)


def test_heads_of_unequal_devices() -> None:
    """By largest remainder the slow ones have [.., 2, 2, 1, 1, 1, 1]: 1.60 times the ideal."""
    speeds = [3.86, 3.86, *[2.15] * 6]
    counts = assign_units(12, speeds)
    assert counts == (3, 3, 1, 1, 1, 1, 1, 1)
    assert round(float(last_done(counts, speeds)) * sum(speeds) / 12, 2) == 1.34


@pytest.mark.parametrize(("units", "weights"), [(4, []), (4, [0, 0]), (4, [2, -1]), (-1, [1])])
def test_what_shares_out_nothing_is_a_failure_of_ours(units: int, weights: list[int]) -> None:
    with pytest.raises(InternalError, match="can't share out"):
        assign_units(units, weights)
