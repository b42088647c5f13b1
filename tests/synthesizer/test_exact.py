"""The optimum, however it is looked for: without dominance and templates, and by trying everything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hspmd_compiler.cluster.cluster import DeviceSpec
from hspmd_compiler.cost_models.compute import DeviceRates
from hspmd_compiler.synthesizer.link_prices import LinkPrice
from hspmd_compiler.synthesizer.machine import Lane
from hspmd_compiler.synthesizer.options import SearchOptions
from hspmd_compiler.synthesizer.search import search
from hspmd_compiler.synthesizer.value_types import Holding
from tests.synthesizer.everything import cheapest_of_all
from tests.synthesizer.small_models import some_machine, space_of

FREE = SearchOptions(memory=False)
SLOW = SearchOptions(memory=False, dominance=False, templates=False)


@pytest.mark.parametrize(
    ("name", "kinds", "seeds"),
    [
        ("perceptron", 2, 6),
        ("tied", 2, 6),
        ("encoder", 1, 1),
        ("encoder-decoder-2", 2, 3),
        pytest.param("encoder", 1, 6, marks=pytest.mark.slow),
        pytest.param("gpt2-tiny", 1, 2, marks=pytest.mark.slow),
    ],
)
def test_dominance_and_templates_change_no_optimum(name: str, kinds: int, seeds: int) -> None:
    for seed in range(seeds):
        machine = some_machine(seed, kinds=kinds)
        quick, slow = search(space_of(name), machine, FREE), search(space_of(name), machine, SLOW)
        assert quick.price_s == pytest.approx(slow.price_s, rel=1e-12), seed
        assert quick.stats["states"] <= slow.stats["states"]


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("perceptron", 0),
        ("tied", 1),
        ("positions", 0),
        pytest.param("positions", 1, marks=pytest.mark.slow),
        pytest.param("perceptron", 1, marks=pytest.mark.slow),
        pytest.param("residual", 0, marks=pytest.mark.slow),
        pytest.param("residual", 1, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_cheaper_than_what_is_found(name: str, seed: int) -> None:
    """Every way of every row, every type of every value that moves, and of every parameter, one by one."""
    machine = some_machine(seed, ranks=2)
    space = space_of(name)
    assert len(space.steps) <= 12
    assert search(space, machine, FREE).price_s == pytest.approx(cheapest_of_all(space, machine), rel=1e-12)


def test_nothing_is_cheaper_where_factors_are() -> None:
    """Sums and other moves cost much; so much that the gradients of both layers are made of factors."""
    dear, cheap = LinkPrice(((1e3, 1.0),)), LinkPrice(((1e-12, 1e-18),))
    slow = DeviceRates(DeviceSpec("cpu", peaks={"float32": 1e5}, memory_bandwidth=1e5), "cpu")
    machine = replace(
        some_machine(0, ranks=2),
        lanes=(Lane(slow, (0.5,), 1.0),),
        gathers=(cheap,),
        scatters=(dear,),
        exchanges=((dear,),),
        reduces=dear,
        all_reduces=dear,
    )
    space = space_of("perceptron")
    found = search(space, machine, FREE)
    assert Holding.FACTORS in {choice.type.holding for choice in found.params}
    assert found.price_s == pytest.approx(cheapest_of_all(space, machine), rel=1e-12)


def test_values_that_every_layer_reads_are_searched_where_they_are_read() -> None:
    """No more states for more layers, and few: what the encoder made counts in one half of a layer only."""
    machine = some_machine(0, kinds=2)
    few, many = (search(space_of(f"encoder-decoder-{layers}"), machine, FREE).stats for layers in (4, 16))
    assert many == few
    assert many["states"] < 4000
    assert many["templates"] < 120
