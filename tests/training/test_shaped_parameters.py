"""Weights made of parameters by triangles, padding, indexing: no samples are there, so that all is exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize

import hspmd_compiler as hspmd
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy

from ..quick import quick_are
from .equal_to_eager import Case

TOKENS, WIDTH, SAMPLES = 4, 6, 5
Use = Callable[[Tensor], Tensor]
ROWS, COLUMNS = torch.triu_indices(TOKENS, TOKENS)


class Mixing(nn.Module):
    """Tokens mixed by a weight that `use` makes of the parameter."""

    def __init__(self, use: Use) -> None:
        super().__init__()
        self.weight, self.use = nn.Parameter(torch.zeros(TOKENS, TOKENS)), use

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.einsum("ts,bsd->btd", self.use(self.weight), x).tanh()


class Stack(nn.Module):
    """Two layers and a loss."""

    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return functional.mse_loss(x, y)


USES: dict[str, Use] = {
    "tril": torch.tril,
    "symmetric": lambda w: w.triu() + w.triu(1).T,
    "skew": lambda w: w.triu(1) - w.triu(1).T,
    "diagonal": lambda w: torch.diag(w.diagonal()),
    "pad": lambda w: functional.pad(w[:, :3], (1, 0)),
    "rows": lambda w: w[torch.tensor([1, 0, 3, 3])],
    "index_put": lambda w: torch.zeros(TOKENS, TOKENS).index_put((ROWS, COLUMNS), w.flatten()[:10]),
    "toeplitz": lambda w: w.flatten()[(torch.arange(TOKENS) - torch.arange(TOKENS)[:, None]) % 7],
    "softmax of a triangle": lambda w: w.masked_fill(torch.ones(TOKENS, TOKENS).triu(1).bool(), -9).softmax(
        -1
    ),
}


class Symmetric(nn.Module):
    """A parametrization: the upper triangle, twice."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "parametrized": lambda: parametrize.register_parametrization(linear(), "weight", Symmetric()),
    "orthogonal": lambda: parametrizations.orthogonal(linear(), orthogonal_map="matrix_exp"),
    "by Cayley": lambda: parametrizations.orthogonal(linear(), orthogonal_map="cayley"),
    "by reflections": lambda: parametrizations.orthogonal(linear(), orthogonal_map="householder"),
    "weight norm": lambda: parametrizations.weight_norm(linear()),
    "old weight norm": lambda: nn.utils.weight_norm(linear()),  # type: ignore[no-untyped-call]
}
ONE = Strategy((P((S((0,), (0, 2)),), (SAMPLES,)),))
SPLIT = Strategy((P((S((0, 1), (0, 1)), S((2,), (1, 2))), (2, 1)), P((S((3,), (0, 2)),), (2,))))


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(SAMPLES, TOKENS, WIDTH, generator=generator) for name in ("x", "y")}


@pytest.mark.parametrize("name", USES)
def test_weights_made_of_parameters(name: str) -> None:
    Case.of(lambda: Stack(lambda: Mixing(USES[name])), batch()).check(SPLIT)


@pytest.mark.parametrize("name", quick_are(LAYERS, [name for name in LAYERS if name != "by reflections"]))
def test_parametrizations(name: str) -> None:
    Case.of(lambda: Stack(LAYERS[name]), batch()).check(SPLIT)


def orthogonal_before() -> nn.Module:
    made = linear()
    nn.init.orthogonal_(made.weight)
    return parametrizations.orthogonal(made, orthogonal_map="householder")


@pytest.mark.parametrize("layer", [LAYERS["by reflections"], orthogonal_before])
def test_an_orthogonal_weight_that_a_factory_makes(layer: Callable[[], nn.Module]) -> None:
    """Its initialiser looks at numbers, and makes the same ones either way."""
    plan = {"pipelines": [{"stages": [{"devices": [0, 1], "layers": 2}], "micro_batches": [2, 1]}]}
    program = hspmd.compile(lambda: (Stack(layer), batch()), strategy=plan)
    assert program.verify(values=True).values is not None
