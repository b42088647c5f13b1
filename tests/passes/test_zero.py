"""ZeRO's shares: every element once, as even as can be, whatever the group and the lengths."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.base.comm_plan import Box
from hspmd_compiler.errors import StrategyError
from hspmd_compiler.layout.layout import whole
from hspmd_compiler.layout.shares import assign_units
from hspmd_compiler.passes.grad_buckets import GradLayout, make_holders, make_term
from hspmd_compiler.passes.zero.zero import Trained, share_out
from hspmd_compiler.program.boxes import flat_part
from hspmd_compiler.program.program import Program


def elements(boxes: tuple[Box, ...]) -> list[tuple[int, ...]]:
    """Every index of the boxes, in order."""
    return [index for box in boxes for index in product(*(range(low, high) for low, high in box))]


@st.composite
def boxes_and_cut(draw: st.DrawFn) -> tuple[tuple[Box, ...], int, int]:
    dims = draw(st.integers(0, 4))
    ends = st.tuples(st.integers(0, 3), st.integers(0, 4)).map(lambda pair: (pair[0], pair[0] + pair[1]))
    boxes = tuple(draw(st.lists(st.tuples(*[ends] * dims), max_size=3)))
    size = len(elements(boxes))
    start = draw(st.integers(0, size))
    return boxes, start, draw(st.integers(start, size))


@settings(max_examples=300, deadline=None)
@given(boxes_and_cut())
def test_a_flat_part_is_that_part_in_order(case: tuple[tuple[Box, ...], int, int]) -> None:
    boxes, start, stop = case
    found = flat_part(boxes, start, stop)
    assert elements(found) == elements(boxes)[start:stop]
    assert all(low < high for box in found for low, high in box)


def replicated(name: str, shape: tuple[int, ...], ranks: int, unit: int = 0) -> Trained:
    """A parameter that `ranks` pipelines of one device hold whole."""
    places = [(whole(shape), (rank,)) for rank in range(ranks)]
    holders = tuple(holder for place in places for holder in make_holders(*place))
    layout = GradLayout(shape, tuple(make_term(*place) for place in places), holders)
    return Trained(name, layout, unit, "float32", "float32")


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 7), max_size=3).map(tuple), min_size=1, max_size=6),
    st.integers(1, 5),
    st.booleans(),
)
def test_every_element_has_one_owner_and_shares_are_even(
    shapes: list[tuple[int, ...]], ranks: int, alone: bool
) -> None:
    """Also over parameters that are shared out one by one, and over those shorter than the group."""
    trained = [
        replicated(f"p{index}", shape, ranks, index if alone else 0) for index, shape in enumerate(shapes)
    ]
    ownership = share_out(trained)
    totals = dict.fromkeys(range(ranks), 0)
    for each, shape in zip(trained, shapes, strict=True):
        owned = ownership.owned(each.name)
        every = [index for boxes in owned.values() for index in elements(boxes)]
        assert sorted(every) == elements((tuple((0, size) for size in shape),))
        for rank, boxes in owned.items():
            assert ownership.rows[each.name, rank] == len(elements(boxes))
            totals[rank] += len(elements(boxes))
    assert sum(totals.values()) == sum(map(prod, shapes))
    assert max(totals.values()) - min(totals.values()) <= 1


def test_what_one_rank_holds_alone_stays_as_it_is() -> None:
    """Without copies there is nothing to share: the program is that of zero 0."""
    from dataclasses import replace

    from tests.training.training_cases import STRATEGIES, graph_of, program_for

    def made(zero: int) -> Program:
        return program_for(graph_of("mlp-ce"), replace(STRATEGIES["one"], zero=zero))

    assert made(0) == made(1) == made(2) == made(3)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_short_parameters_go_round(ranks: int) -> None:
    """Parameters of one element don't all go to the first rank."""
    trained = [replicated(f"p{index}", (1,), ranks, index) for index in range(2 * ranks)]
    ownership = share_out(trained)
    owners = [next(iter(ownership.owned(each.name))) for each in trained]
    assert owners == [*range(ranks)] * 2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=8),
    st.lists(st.integers(0, 5), min_size=2, max_size=5).filter(any),
    st.booleans(),
)
def test_shares_follow_weights_over_all_parameters(sizes: list[int], weights: list[int], alone: bool) -> None:
    """Also where each parameter is shared out alone: what is rounded is the sum."""
    trained = [
        replicated(f"p{index}", (size,), len(weights), index if alone else 0)
        for index, size in enumerate(sizes)
    ]
    ownership = share_out(trained, dict(enumerate(weights)))
    stored = [
        sum(ownership.rows.get((each.name, rank), 0) for each in trained) for rank in range(len(weights))
    ]
    assert tuple(stored) == assign_units(sum(sizes), weights)
    for each, size in zip(trained, sizes, strict=True):
        every = [index for boxes in ownership.owned(each.name).values() for index in elements(boxes)]
        assert sorted(every) == elements((((0, size),),))


def test_elements_that_nobody_may_store_are_refused(expect: Callable[[str, str], None]) -> None:
    """All of them in one error; what a single rank holds stays with it."""
    trained = [replicated(f"layers.{index}.weight", (4,), 2) for index in range(3)]
    trained += [replicated("alone", (4,), 1), replicated("wide", (4,), 3)]
    with pytest.raises(StrategyError) as caught:
        share_out(trained, {0: 0, 1: 0, 2: 1})
    expect("passes/zero_without_owner", str(caught.value))
