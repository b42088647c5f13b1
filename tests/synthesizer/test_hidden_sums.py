"""Sums of gradients beside the backward pass: exact in its own model, and near the compiled program."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.api import plan
from hspmd_compiler.cluster.cluster import DeviceSpec
from hspmd_compiler.cost_models.compute import DeviceRates
from hspmd_compiler.synthesizer.link_prices import LinkPrice
from hspmd_compiler.synthesizer.machine import Lane, SearchMachine
from hspmd_compiler.synthesizer.options import SearchOptions
from hspmd_compiler.synthesizer.search import search
from tests.cost_models.priced import cluster, device
from tests.synthesizer.everything import cheapest_of_all
from tests.synthesizer.small_models import some_machine, space_of

EARLY = SearchOptions(memory=False, bucket_bytes=1)
LATE = replace(EARLY, bucket_bytes=0)
WIDTH, LAYERS, TOKENS = 1024, 8, 256


def two_groups(per_byte_s: float) -> SearchMachine:
    """Two groups of two devices each, whose gradients are summed at this price."""
    slow = DeviceRates(DeviceSpec("cpu", peaks={"float32": 1e6}, memory_bandwidth=1e6), "cpu")
    return replace(
        some_machine(0, ranks=2),
        lanes=(Lane(slow, (0.5,), 0.5),),
        outer=2,
        piece_reduces=LinkPrice(((1e-9, per_byte_s),)),
        all_reduces=LinkPrice(((1e-9, 1.5 * per_byte_s),)),
    )


@pytest.mark.parametrize("zero", [(0,), (0, 2)])
@pytest.mark.parametrize("per_byte_s", [1e-6, 1e-5, 1e-4])
def test_nothing_is_cheaper_where_sums_are_hidden(per_byte_s: float, zero: tuple[int, ...]) -> None:
    """Beside every program, its sums put on the clock one by one: all but the last hidden, none of them, or
    gradients handed over at the end."""
    machine, space = two_groups(per_byte_s), space_of("perceptron")
    found = search(space, machine, replace(EARLY, zero=zero))
    assert found.price_s == pytest.approx(
        cheapest_of_all(space, machine, replace(EARLY, zero=zero)), rel=1e-12
    )
    assert found.bound_s == pytest.approx(found.price_s, rel=1e-12)
    assert found.compute_s + found.exchange_s + found.gradient_s == pytest.approx(found.price_s, rel=1e-12)


def test_what_is_hidden_decides() -> None:
    """Summed at the end, ZeRO of gradients is cheaper; beside the backward pass it would be too late."""
    space = space_of("perceptron")
    for per_byte_s, hidden, shared in ((1e-6, False, True), (1e-5, True, False)):
        machine = two_groups(per_byte_s)
        early, late = (search(space, machine, replace(one, zero=(0, 2))) for one in (EARLY, LATE))
        assert (early.price_s < late.price_s * 0.95) == hidden
        assert any(choice.zero == 2 for choice in early.params) == shared


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return (x - y).square().mean()


def stack() -> tuple[nn.Module, dict[str, Tensor]]:
    return Stack(), {name: torch.zeros(2, TOKENS, WIDTH) for name in ("x", "y")}


@pytest.mark.parametrize(("peak", "part"), [(2e11, 0.7), (2e12, 0.4), (1e13, 0.9)])
def test_the_price_is_that_of_the_compiled_program(peak: float, part: float) -> None:
    """Of two nodes: where all but the last sum are hidden, and where links are what takes longest.

    part: at most so much of what sums and updates take is left behind the backward pass.
    """
    machines = cluster([device(peak=peak)], [device(peak=peak)])
    found = plan(stack, cluster=machines, global_batch=16)
    searched = [one for one in (found.chosen, *found.runner_ups) if not one.strategy.zero]
    programs = [(one, one.candidate.found) for one in searched if one.candidate.found is not None]
    assert programs
    for one, program in programs:
        assert program.price_s == pytest.approx(one.step_s, rel=0.02), one.name
        assert program.gradient_s < part * sum(choice.price_s for choice in program.params)
