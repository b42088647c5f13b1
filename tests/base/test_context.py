"""How a row is cut among the members of a context-parallel group: each token once, the runs in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.base.context import ContextCut, member_runs, row_pieces

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=6)


@given(LENGTHS, st.sampled_from(ContextCut))
def test_each_token_has_one_member(lengths: list[int], cut: ContextCut) -> None:
    runs = member_runs(row_pieces(lengths, cut), len(lengths))
    tokens = [place for own in runs for low, high in own for place in range(low, high)]
    assert sorted(tokens) == list(range(sum(lengths)))
    assert [sum(high - low for low, high in own) for own in runs] == lengths
    assert all(own == tuple(sorted(own)) for own in runs)


@pytest.mark.parametrize(
    ("cut", "runs"),
    [
        (ContextCut.CONTIGUOUS, (((0, 5),), ((5, 7),), ((7, 7),))),
        (ContextCut.BALANCED, (((0, 2), (4, 7)), ((2, 3), (3, 4)), ((3, 3), (3, 3)))),
    ],
)
def test_known_cuts(cut: ContextCut, runs: tuple[object, ...]) -> None:
    """The outermost runs are the first member's; of 5 tokens the tail has 3."""
    assert member_runs(row_pieces([5, 2, 0], cut), 3) == runs
