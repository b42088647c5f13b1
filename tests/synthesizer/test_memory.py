"""Memory as a constraint: what is found fits, none that fits is below the bound, and refusals are true."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hspmd_compiler.cluster.new import NewCluster, new_cluster
from hspmd_compiler.errors import HspmdError
from hspmd_compiler.synthesizer.machine import SearchMachine, machine_of
from hspmd_compiler.synthesizer.options import SearchOptions
from hspmd_compiler.synthesizer.search import search
from hspmd_compiler.synthesizer.space.search_space import SearchSpace
from tests.synthesizer.everything import frontier_of_all
from tests.synthesizer.small_models import some_machine, space_of

HELD = SearchOptions(recompute=False)


def with_memory(machine: SearchMachine, size: float) -> SearchMachine:
    return replace(machine, lanes=tuple(replace(lane, capacity_bytes=size) for lane in machine.lanes))


@pytest.mark.parametrize(
    ("name", "seed"),
    [("perceptron", 0), pytest.param("perceptron", 1, marks=pytest.mark.slow), ("tied", 0)],
)
def test_nothing_that_fits_is_below_the_bound(name: str, seed: int) -> None:
    """At every memory between what holds least and what costs least, against all programs one by one."""
    machine, space = some_machine(seed, ranks=2), space_of(name)
    every = frontier_of_all(space, machine)
    assert len(every) > 2
    gaps = []
    for size, _ in every:
        found = search(space, with_memory(machine, size), HELD)
        least = min(price for held, price in every if held <= size)
        assert max(found.memory_bytes) <= size
        assert found.bound_s <= least * (1 + 1e-9)
        assert least <= found.price_s * (1 + 1e-9)
        gaps.append(found.price_s / least - 1)
    assert gaps[-1] == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(HspmdError, match="no program fits"):
        search(space, with_memory(machine, every[0][0] * 0.99), HELD)


def test_recomputing_makes_fit_what_did_not() -> None:
    """Layers keep their inputs alone; it is said which."""
    machine, space = some_machine(3, ranks=2), space_of("encoder")
    size = max(search(space, machine, SearchOptions(memory=False)).memory_bytes)
    while _fits(space, with_memory(machine, size), HELD):
        size *= 0.9
    found = search(space, with_memory(machine, size))
    assert found.recompute
    assert max(found.memory_bytes) <= size
    assert found.bound_s <= found.price_s


def _fits(space: SearchSpace, machine: SearchMachine, options: SearchOptions) -> bool:
    try:
        search(space, machine, options)
    except HspmdError:
        return False
    return True


def test_a_refusal_says_by_how_much_and_what_helps() -> None:
    with pytest.raises(HspmdError) as refused:
        search(space_of("perceptron"), with_memory(some_machine(0, ranks=2), 1000.0))
    text = str(refused.value)
    assert "GiB on one device, of which 0.00 can be used" in text
    assert "missing" in text and "take more devices" in text


def test_a_search_begins_where_the_last_one_ended() -> None:
    """Of a machine cut in groups in other ways: fewer searches, and what is found is as cheap and as sure."""
    space = space_of("encoder")
    cluster = new_cluster(NewCluster(["4xA100-SXM4-80GB"], {"nic": "200Gbit"})).cluster
    slots = list(cluster.slots)
    near, fewer = 0.0, []
    for ranks in (1, 2, 4):
        groups = [slots[first : first + ranks] for first in range(0, 4, ranks)]
        machine = machine_of(cluster, groups)
        size = 0.7 * max(search(space, machine, SearchOptions(memory=False)).memory_bytes)
        cold, warm = (search(space, with_memory(machine, size), near=one) for one in (0.0, near))
        assert warm.price_s == pytest.approx(cold.price_s, rel=5e-3)
        assert warm.bound_s == pytest.approx(cold.bound_s, rel=5e-3)
        assert max(warm.memory_bytes) <= size
        fewer.append(cold.stats["searches"] - warm.stats["searches"])
        near = warm.memory_s
    assert fewer[0] == 0
    assert sum(fewer) > 0


@pytest.mark.parametrize("near", [1e-12, 1e3])
def test_a_wrong_start_finds_the_same(near: float) -> None:
    machine, space = some_machine(0, ranks=2), space_of("perceptron")
    size = 0.8 * max(search(space, machine, SearchOptions(memory=False)).memory_bytes)
    held = with_memory(machine, size)
    cold, warm = search(space, held), search(space, held, near=near)
    assert warm.price_s == pytest.approx(cold.price_s)
    assert warm.bound_s == pytest.approx(cold.bound_s)
