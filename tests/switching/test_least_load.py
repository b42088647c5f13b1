"""The least load: against every way to send a few elements, and against the bound of every set of demands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.program.switch_plan import Move, SwitchClass
from hspmd_compiler.switching.demand import SwitchDemand
from hspmd_compiler.switching.least_load import least_load
from hspmd_compiler.switching.links import SwitchLinks, links_of, links_of_nodes
from hspmd_compiler.switching.load_flow import LoadProblem, divided
from hspmd_compiler.switching.sending_shares import by_node
from hspmd_compiler.switching.totals import largest_s, totals_of

from .by_element import check_moves

RANKS, SCALE = 5, 600
Sent = dict[tuple[int, int], int]


@st.composite
def demands_and_links(draw: st.DrawFn) -> tuple[list[SwitchDemand], SwitchLinks]:
    """Few enough elements for all ways to send them; rates of which any may be the bottleneck."""
    ranks = st.sets(st.integers(0, RANKS - 1), min_size=1, max_size=3).map(lambda held: tuple(sorted(held)))
    demand = st.builds(SwitchDemand, st.integers(1, 2), st.just(1), ranks, ranks)
    demands = draw(st.lists(demand, min_size=1, max_size=2))
    rate = st.sampled_from((1.0, 2.0, 7.0))
    nodes = tuple(draw(st.integers(0, 2)) for _ in range(RANKS))
    links = SwitchLinks(
        nodes, tuple(draw(rate) for _ in range(3)), draw(rate), tuple(draw(rate) for _ in range(3))
    )
    return demands, links


@given(demands_and_links())
@settings(max_examples=120, deadline=None)
def test_no_way_to_send_takes_less(case: tuple[list[SwitchDemand], SwitchLinks]) -> None:
    demands, links = case
    best_s = min(largest_s(sent, links) for sent in every_way(demands, links))
    many = [replace(each, elements=each.elements * SCALE) for each in demands]
    assert sending_s(many, links) / SCALE <= best_s * 1.02
    assert sending_s(demands, links) <= best_s + 2 * max(links.near_s + links.nic_s) * len(demands)


def sending_s(demands: Sequence[SwitchDemand], links: SwitchLinks) -> float:
    """The time of our plan, after a look at each of its moves."""
    planned = least_load(demands, links)
    for each, moves in zip(demands, planned, strict=True):
        parts = SwitchClass(("value",), each.element_bytes, each.holders, each.needers, (), moves)
        check_moves(parts, each.elements)
    found = totals_of(zip(demands, planned, strict=True), links)
    assert found.inter_node.bytes == found.inter_node_bound_bytes
    assert found.seconds is not None
    return found.seconds


def every_way(demands: Sequence[SwitchDemand], links: SwitchLinks) -> Iterator[Sent]:
    """Each element and node for itself: from a holder there, or in by one rank that relays it."""
    ways = [
        list(ways_of(each.holders, targets, links))
        for each in demands
        for targets in by_node(each.missing, links.nodes).values()
        for _ in range(each.elements)
    ]
    for chosen in product(*ways):
        sent: Sent = {}
        for pair in (pair for way in chosen for pair in way):
            sent[pair] = sent.get(pair, 0) + 1
        yield sent


def ways_of(
    holders: Sequence[int], targets: Sequence[int], links: SwitchLinks
) -> Iterator[list[tuple[int, int]]]:
    near = [holder for holder in holders if links.nodes[holder] == links.nodes[targets[0]]]
    for source, entry in product(near or holders, targets):
        rest = [target for target in targets if target != entry]
        for sources in product((*near, entry), repeat=len(rest)):
            yield [(source, entry), *zip(sources, rest, strict=True)]


@st.composite
def load_problems(draw: st.DrawFn) -> LoadProblem:
    workers = st.sets(st.integers(0, 5), min_size=1, max_size=4).map(lambda held: tuple(sorted(held)))
    demands = draw(st.dictionaries(workers, st.integers(0, 1000), min_size=1, max_size=5))
    rate = st.sampled_from((0.0, 0.5, 1.0, 3.0))
    pools = {worker: draw(st.integers(0, 2)) for worker in range(6)}
    return LoadProblem(demands, pools, draw(rate), {pool: draw(rate) for pool in range(3)})


@given(load_problems())
@settings(max_examples=200, deadline=None)
def test_a_division_attains_the_bound_of_every_set(problem: LoadProblem) -> None:
    found = divided(problem)
    units: dict[int, int] = {}
    for demand, parts in found.items():
        assert sum(parts.values()) == problem.demands[demand]
        assert all(worker in demand and amount > 0 for worker, amount in parts.items())
        for worker, amount in parts.items():
            units[worker] = units.get(worker, 0) + amount
    pools: dict[int, int] = {}
    for worker, amount in units.items():
        pools[problem.pools[worker]] = pools.get(problem.pools[worker], 0) + amount
    longest = max((amount * problem.worker_s for amount in units.values()), default=0.0)
    longest_pool = max((amount * problem.pool_s[pool] for pool, amount in pools.items()), default=0.0)
    bound = max(bound_s(problem, some) for some in subsets(list(problem.demands)))
    assert longest <= bound + problem.worker_s
    assert longest_pool <= bound + max(problem.pool_s.values())


def subsets(items: list[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], ...]]:
    for size in range(1, len(items) + 1):
        yield from combinations(items, size)


def bound_s(problem: LoadProblem, some: Sequence[tuple[int, ...]]) -> float:
    """Units over the rates of all that may do them, of each pool no more than the pool's own."""
    by_pool: dict[int, set[int]] = {}
    for worker in {worker for demand in some for worker in demand}:
        by_pool.setdefault(problem.pools[worker], set()).add(worker)
    rate = 0.0
    for pool, workers in by_pool.items():
        own = len(workers) / problem.worker_s if problem.worker_s else float("inf")
        rate += min(own, 1 / problem.pool_s[pool] if problem.pool_s[pool] else float("inf"))
    return sum(problem.demands[demand] for demand in some) / rate


def test_a_lone_holder_is_spared_by_relays() -> None:
    """One holder, three ranks of another node: each gets a third of the elements, and passes it on."""
    (moves,) = least_load([SwitchDemand(9, 4, (0,), (1, 2, 3))], links_of_nodes([0, 1, 1, 1]))
    assert [move for move in moves if not move.is_relay] == [
        Move(0, 1, 0, 3),
        Move(0, 2, 3, 6),
        Move(0, 3, 6, 9),
    ]
    assert len(moves) == 9


def test_a_huge_plan_is_divided_at_once() -> None:
    """Loads of 1e12 bytes are divided as exactly as small ones, and rounded to whole elements."""
    demands = [SwitchDemand(10**11 + 1, 12, (0, 1, 2), (3,)), SwitchDemand(10**10, 8, (0,), (3,))]
    planned = least_load(demands, links_of(None, range(4)))
    sent = dict.fromkeys(range(3), 0)
    for each, moves in zip(demands, planned, strict=True):
        for move in moves:
            sent[move.source] += (move.high - move.low) * each.element_bytes
    assert max(sent.values()) - min(sent.values()) <= 12


def test_ranks_relay_in_their_own_node_where_a_lone_holder_would_be_waited_for() -> None:
    """Of one holder and seven ranks of its node each sends about as much; the holder sends all once."""
    links = links_of_nodes([0] * 8)
    demand = SwitchDemand(700, 4, (0,), tuple(range(1, 8)))
    (moves,) = least_load([demand], links)
    sent = {rank: sum(move.high - move.low for move in moves if move.source == rank) for rank in range(8)}
    assert max(sent.values()) <= 720
    near, apart = SwitchDemand(7, 4, (0,), (1, 2)), SwitchDemand(700, 4, (8,), (1, 2))
    moves, _ = least_load([near, apart], links_of_nodes([0] * 8 + [1]))
    assert set(moves) == {Move(0, 1, 0, 7), Move(0, 2, 0, 7)}, "none waits for it, so that it needs no relay"


def test_what_one_rank_must_send_does_not_unbalance_the_others() -> None:
    lone, shared = SwitchDemand(1000, 4, (0,), (3,)), SwitchDemand(300, 4, (0, 1, 2), (3,))
    _, moves = least_load([lone, shared], links_of(None, range(4)))
    assert {move.source: move.high - move.low for move in moves} == {1: 150, 2: 150}


@pytest.mark.parametrize("holders", [(), (0,)])
def test_nothing_moves_where_nobody_holds_or_all_do(holders: tuple[int, ...]) -> None:
    assert least_load([SwitchDemand(5, 4, holders, (0,))], links_of(None, [0])) == [()]
