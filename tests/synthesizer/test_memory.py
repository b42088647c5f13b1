"""Memory as a constraint: what is found fits, none that fits is below the bound, and refusals are true."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hspmd_compiler.errors import HspmdError
from hspmd_compiler.synthesizer.machine import SearchMachine
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
