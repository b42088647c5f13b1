"""Values made of parameters alone, as positions and their biases: held whole beside samples that are cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.api import compile, plan
from hspmd_compiler.synthesizer.moves import move
from hspmd_compiler.synthesizer.options import SearchOptions
from hspmd_compiler.synthesizer.search import search
from hspmd_compiler.synthesizer.space.codes import REPLICATE, WHOLE
from hspmd_compiler.synthesizer.value_types import Holding
from tests.cost_models.priced import cluster, device
from tests.synthesizer.small_models import some_machine, space_of

TOKENS, HEADS, WIDTH = 4, 2, 8


class Biased(nn.Module):
    """Learned positions; a bias by distance that all layers read, as T5's; a scale that is no lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.distances = nn.Embedding(TOKENS, WIDTH), nn.Embedding(2 * TOKENS, HEADS)
        self.scale = nn.Parameter(torch.zeros(WIDTH))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(TOKENS)
        x = x + torch.tanh(self.positions(places))
        bias = self.distances(places[:, None] - places[None, :] + TOKENS).permute(2, 0, 1)[None]
        for layer in self.layers:
            heads = layer(x).view(-1, TOKENS, HEADS, WIDTH // HEADS).transpose(1, 2)
            scores = torch.softmax(heads @ heads.transpose(2, 3) + bias, -1)
            x = x + (scores @ heads).transpose(1, 2).reshape(x.shape) * torch.sigmoid(self.scale)
        return x.square().mean()


def biased() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    return Biased(), {"x": torch.zeros(2, TOKENS, WIDTH)}


def test_samples_are_cut_beside_tables_of_positions() -> None:
    """Samples are many and links slow: nothing is whole on all ranks but what is made of parameters."""
    spec = cluster(*([device(peak=1e10, pace=pace)] for pace in (1, 2, 2)))
    found = plan(biased, cluster=spec, global_batch=4000)
    best = next(one for one in (found.chosen, *found.runner_ups) if one.name == "1 x 3, searched")
    assert best.candidate.found is not None
    assert [one.type.holding for one in best.candidate.found.inputs] == [Holding.SPLIT]
    assert best.step_s <= 1.02 * min(one.step_s for one in (found.chosen, *found.runner_ups))
    assert best.candidate.found.price_s == pytest.approx(best.step_s, rel=0.1)
    compile(biased, strategy=best.strategy, cluster=spec).verify(values=True)


def test_what_is_made_of_parameters_moves_whole_for_each_micro_batch() -> None:
    """Samples are shared out to groups and micro-batches; parameters are not."""
    machine = replace(some_machine(0), micro_batches=4)
    lane = machine.lanes[0]
    halved = replace(machine, lanes=(replace(lane, batch=0.5),))
    size = 1 << 20
    for one in (machine, halved):
        found = move(one, size, (), REPLICATE, WHOLE, fractions=True, static=True)
        assert found is not None
        assert found.backward_s == pytest.approx(4 * one.reduces.seconds(size))
    assert halved.batch < machine.batch < 1


def test_what_is_made_of_parameters_is_held_by_each_group() -> None:
    """What backward reads of it does not shrink with a group's samples; what it reads of samples does."""
    space, machine = space_of("positions"), some_machine(0, ranks=2)

    def held(batch: float) -> int:
        lanes = tuple(replace(lane, batch=batch) for lane in machine.lanes)
        apart = replace(machine, lanes=lanes, outer=round(1 / batch))
        zero = SearchOptions(zero=(0,), memory=False)
        return max(search(space, replace(apart, ranks=1, vertices=((1.0,),)), zero).memory_bytes)

    whole, half = held(1.0), held(0.5)
    state = 4 * 4 * (4 * 6 + 6 * 2)  # of float32: parameters, gradients, two moments
    positions = 4 * (4 * 6)  # behind tanh
    assert 2 * half - whole == state + positions
