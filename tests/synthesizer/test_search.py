"""What a search says: other layouts with prices, operators that no rule splits, one device, equal runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hspmd_compiler.cluster.calibration import AtOnce, Calibration, Fit
from hspmd_compiler.cluster.cluster import ClusterSpec, NodeSpec
from hspmd_compiler.errors import HspmdError
from hspmd_compiler.synthesizer.block_chain import BlockChain
from hspmd_compiler.synthesizer.considered import Considered
from hspmd_compiler.synthesizer.dynamic_program import Frontier
from hspmd_compiler.synthesizer.machine import machine_of
from hspmd_compiler.synthesizer.options import SearchOptions
from hspmd_compiler.synthesizer.search import search
from hspmd_compiler.synthesizer.space.codes import FIRST_CUT, type_of
from hspmd_compiler.synthesizer.value_types import Holding
from tests.cost_models.priced import cluster, device
from tests.synthesizer.small_models import graph_of, some_machine, space_of

FREE = SearchOptions(memory=False)


@pytest.mark.parametrize("name", ["perceptron", "tied", "encoder"])
@pytest.mark.parametrize("seed", range(3))
def test_no_other_layout_is_cheaper_than_what_was_chosen(name: str, seed: int) -> None:
    """At every anchor and parameter the cheapest of all types costs what the program does."""
    found = search(space_of(name), some_machine(seed), FREE)
    assert len(found.considered) > 1
    for place, ways in found.considered.items():
        prices = [price for _, price in ways]
        assert prices == sorted(prices), place
        assert prices[0] == pytest.approx(found.price_s, rel=1e-9), place
    for choice in found.params:
        if choice.name in found.considered:
            prices_of = dict(found.considered[choice.name])
            assert prices_of[choice.type] == pytest.approx(found.price_s, rel=1e-9)


@pytest.mark.parametrize("seed", [0, 2])
def test_a_layouts_price_is_that_of_the_best_program_with_it(seed: int) -> None:
    """Beside a search of all blocks in which a weight may be held in no other way."""
    space, machine = space_of("encoder-decoder-2"), some_machine(seed)
    considered = search(space, machine, FREE).considered
    assert isinstance(considered, Considered)
    chain, told = considered.chain, dict(considered["weight"])
    (place,) = (at for at, step in enumerate(space.steps) if step.starts and step.row.origin.name == "weight")
    cuts = space.walk.ways.cuts(space.steps[place].results[0])
    for code in range(FIRST_CUT + len(cuts)):
        frontier = Frontier(chain.frontier.steps, only={place: code})
        alone = BlockChain(
            frontier, space.blocks, space.regions, space.block_kinds, chain.layered, templates=False
        )
        least = min((price for price, _ in alone.run().values()), default=None)
        kind = type_of(code, cuts, 1)
        assert told.get(kind) == (None if least is None else pytest.approx(least, rel=1e-9)), kind


def test_an_operator_that_no_rule_splits_is_whole_and_said() -> None:
    """Its operand is brought together on each rank, and what it gives is whole."""
    space = space_of("solved")
    found = search(space, some_machine(1, ranks=4), FREE)
    assert {space.graph.rows[number].op for number in found.whole} == {"aten.cholesky_solve.default"}


def test_one_device_holds_all_and_exchanges_nothing() -> None:
    spec = cluster([device()])
    found = search(graph_of("encoder"), machine_of(spec, [list(spec.slots)]))
    assert not found.exchanges
    assert found.exchange_s == 0.0
    assert {choice.type.holding for choice in found.params} == {Holding.REPLICATE}
    assert found.bound_s == found.price_s


def test_the_same_search_finds_the_same() -> None:
    first, second = (search(graph_of("encoder"), some_machine(5), FREE) for _ in range(2))
    assert (first.params, first.exchanges, first.price_s) == (second.params, second.exchanges, second.price_s)
    assert dict(first.stats) == dict(second.stats)


def test_each_kind_of_block_is_searched_once() -> None:
    """Once for each state before it: the second layer and the third are alike."""
    found = search(space_of("encoder"), some_machine(2, ranks=4), FREE)
    considered = found.considered
    assert isinstance(considered, Considered)
    states = [len(front) for front in considered.chain.fronts]
    assert len(states) == 5
    assert found.stats["templates"] == sum(states) - states[2]


def test_figures_that_are_missing_are_all_told() -> None:
    bare = ClusterSpec((NodeSpec("a", (replace(device(), memory=None, peaks={}),) * 2),))
    with pytest.raises(HspmdError) as refused:
        machine_of(bare, [list(bare.slots)])
    text = str(refused.value)
    assert "memory of cpu" in text
    assert "peak in float32 of cpu" in text
    assert "inside a" in text


def test_ranks_that_share_processors_are_slower_in_a_search() -> None:
    """By the closed form: four on two cores take twice as long, and what they slow each other by."""
    operators = {"other:float32": Fit(1e-3)}
    measured = Calibration("2026-11-28", "2.11.0", "cpu", 1, operators, {}, {}, Fit(0.0), 0.0, 0, "async")
    free = cluster([device()] * 4, calibration=measured)
    crowded = replace(
        free,
        nodes=tuple(replace(node, cores=2) for node in free.nodes),
        calibration=replace(measured, at_once=(AtOnce(2, 1.0), AtOnce(4, 1.25))),
    )
    machines = [machine_of(one, [list(one.slots)]) for one in (free, crowded)]
    paces = [{lane.rates.device.pace for lane in machine.lanes} for machine in machines]
    assert paces == [{1.0}, {2.5}]


def test_groups_pay_for_sums_across_and_ranks_for_sums_inside() -> None:
    """Gradients of whole parameters are summed over all, of pieces over the groups alone."""
    spec = cluster([device()] * 4)
    slots = list(spec.slots)
    pairs = machine_of(spec, [slots[:2], slots[2:]])
    assert pairs.outer == 2
    assert pairs.batch == 0.5
    assert 0 < pairs.piece_reduces.seconds(1 << 20) < pairs.all_reduces.seconds(1 << 20)
    unequal = machine_of(spec, [slots[:2], slots[2:]], batches=[3, 1], micro_batches=2)
    assert unequal.batch == 0.375
