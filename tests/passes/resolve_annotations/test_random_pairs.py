"""Random pairs of annotations, run in lockstep: 500 here, 10,000 in the slow run."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hspmd_compiler.annotations import parse_annotation
from hspmd_compiler.base.comm_plan import CostModel
from hspmd_compiler.passes.resolve_annotations import Method, Resolution, resolve

from ...annotations.pair_classes import ALL_CLASSES, classes_of
from ...annotations.pairs import Pair, pairs
from .proof import COSTS, check_every_way, check_pair

QUIET = list(HealthCheck)


FEWEST = 8
"""Pairs of each class among the 500."""


def test_pairs() -> None:
    """Every class of pairs occurs, each of them several times."""
    drawn: Counter[object] = Counter()

    @settings(max_examples=500, deadline=None, suppress_health_check=QUIET, derandomize=True)
    @given(pairs(), st.sampled_from(COSTS))
    def check(pair: Pair, cost: CostModel) -> None:
        drawn.update(classes_of(pair))
        check_pair(*pair, cost)

    check()
    assert not {each: drawn[each] for each in ALL_CLASSES if drawn[each] < FEWEST}


@settings(max_examples=150, deadline=None, suppress_health_check=QUIET, derandomize=True)
@given(pairs(), st.sampled_from(COSTS))
def test_every_way(pair: Pair, cost: CostModel) -> None:
    source, target, shape = pair
    check_every_way(resolve(source, target, shape, "float64", cost=cost), cost)


def test_a_rank_that_gets_nothing_beside_an_all_reduce() -> None:
    """One row over two ranks: the second has a tensor without rows, which it did not have before."""
    source = parse_annotation("[1,2]  <Px2>")
    target = parse_annotation("[1,0 | 2]  <S0x2 | R>  hetero=dup")
    found = check_pair(source, target, (1,), COSTS[0])
    assert [part.method for part in found.parts] == [Method.ALL_REDUCE, Method.LOCAL]


def test_loads_without_a_choice_count_where_senders_are_chosen_by_load() -> None:
    """Rank 4 alone has three rows to send before one is chosen for the row that rank 3 has, too."""
    source = parse_annotation("[0,1,2,3,4 | 5]  <S0(0:0,0:0,0:0,0:2,1:4) | R>  hetero=0(4,1)")
    target = parse_annotation("[0,1,2,3,4 | 5]  <Dx5 | R>  hetero=dup")
    found = resolve(source, target, (5, 1), "float64", cost=COSTS[0])
    assert {Method.DIRECT, Method.BALANCED} == {way.method for part in found.parts for way in part.ways}
    check_every_way(found, COSTS[0])


def test_unrelated_ranks_move_at_once_within_a_tier() -> None:
    """Two all-reduces of two ranks each, behind a local slice and a reduce-scatter."""
    source = parse_annotation("[0,1 | 2,3]  <Dx2 | Px2>  hetero=partial")
    target = parse_annotation("[0,1 | 2,3]  <S0x2 | S0x2>  hetero=dup")
    found = resolve(source, target, (2,), "float64", cost=COSTS[1])
    assert [part.method for part in found.parts] == [Method.TIERS]
    assert found.seconds == 16.0
    check_every_way(found, COSTS[1])


@pytest.mark.parametrize("cost", COSTS, ids=["as it is", "bytes", "machines"])
def test_who_has_an_addend_has_not_the_value(cost: CostModel) -> None:
    """One device has the whole value, six have addends of it: five of these wait for a copy to be relayed."""
    source = parse_annotation("[1 | 7,0,4,3,6,2]  <R | Px2 S0x3{5(3:5,0:4,5:5)}>  hetero=dup")
    target = parse_annotation("[1 | 7,0,4,3,6,2]  <R | Dx6>  hetero=0(4,1)")
    check_every_way(check_pair(source, target, (5,), cost), cost)


@pytest.mark.slow
def test_many_pairs() -> None:
    taken: Counter[Method] = Counter()

    @settings(max_examples=10_000, deadline=None, suppress_health_check=QUIET, database=None)
    @given(pairs(), st.sampled_from(COSTS))
    def check(pair: Pair, cost: CostModel) -> None:
        found: Resolution = check_pair(*pair, cost)
        check_every_way(found, cost)
        taken.update(part.method for part in found.parts)

    check()
    print(taken)
    priced = set(Method) - {Method.IN_TURN}  # what layouts take without a cost model
    assert set(taken) == priced, "every way is taken by some pair"
