"""Graphs of small models, and machines with any prices, that tests of the search share."""

from __future__ import annotations

import random
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hspmd_compiler.cluster.cluster import DeviceSpec
from hspmd_compiler.cost_models.compute import DeviceRates
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.models.builtin_models import BUILTIN
from hspmd_compiler.synthesizer.link_prices import LinkPrice
from hspmd_compiler.synthesizer.machine import Lane, SearchMachine
from hspmd_compiler.synthesizer.space.search_space import SearchSpace
from hspmd_compiler.trace.blocks.trace_step import trace_step

SAMPLES = 8
CLASSES = 4


class Perceptron(nn.Module):
    """Two linear layers and a loss: few enough rows to try everything."""

    def __init__(self, wide: int = 12) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, wide), nn.Linear(wide, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.second(torch.relu(self.first(x))), y)


class Tied(nn.Module):
    """One weight that is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6, 6))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return ((torch.relu(x @ self.weight) @ self.weight) ** 2).sum()


class Residual(nn.Module):
    """A value that is read twice, once behind a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8, bias=False), nn.Linear(8, 6, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.first(x)
        return (x + torch.tanh(self.second(x)) @ self.second.weight).sum()


class Reader(nn.Module):
    """Two halves: one reads a weight of its own twice, the other what another part of the model made."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other, self.out = (nn.Linear(6, 6, bias=False) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = x + torch.relu(self.own(x)) @ self.own.weight
        return x + self.out(torch.tanh(x) * self.other(memory))


class EncoderDecoder(nn.Module):
    """A value that every layer reads, and a weight that is read before and behind all of them."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6, 6))
        self.encoder = nn.Linear(6, 6, bias=False)
        self.layers = nn.ModuleList(Reader() for _ in range(layers))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        memory = torch.relu(self.encoder(x))
        x = x @ self.weight
        for layer in self.layers:
            x = layer(x, memory)
        return ((x @ self.weight) ** 2).sum()


class Positions(nn.Module):
    """A table of parameters that samples meet behind a lookup and an operator that no sum passes."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(4, 6), nn.Linear(6, 2, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        at = torch.tanh(self.table(torch.arange(4)))
        return self.out(x + at).square().sum()


class Solved(nn.Module):
    """An operator that no rule splits, between two that some do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 9), nn.Linear(3, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        sides = self.first(x).view(-1, 3, 3)
        return self.second(torch.cholesky_solve(sides, torch.eye(3).expand_as(sides))).sum()


def images(*shape: int) -> dict[str, Tensor]:
    return {"x": torch.zeros(SAMPLES, *shape), "y": torch.zeros(SAMPLES, dtype=torch.int64)}


class Encoder(nn.Module):
    """Encoder layers of PyTorch's own."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(layers)
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(x.mean(1), y)


@cache
def graph_of(name: str) -> LogicalGraph:
    """Of a model by its name here, or of a built-in one."""
    if name == "perceptron":
        model, inputs = Perceptron(), images(6)
    elif name == "residual":
        model, inputs = Residual(), images(6)
    elif name == "tied":
        model, inputs = Tied(), images(6)
    elif name == "positions":
        model, inputs = Positions(), images(4, 6)
    elif name == "solved":
        model, inputs = Solved(), images(6)
    elif name.startswith("encoder-decoder-"):
        model, inputs = EncoderDecoder(int(name.rpartition("-")[2])), images(6)
    elif name == "encoder":
        model, inputs = Encoder(4), images(4, 8)
    else:
        model, inputs = BUILTIN[name].build()
        inputs = {
            key: torch.zeros(SAMPLES, *value.shape[1:], dtype=value.dtype) for key, value in inputs.items()
        }
    return trace_step(model, inputs, batch=SAMPLES).graph


@cache
def space_of(name: str) -> SearchSpace:
    """Of `graph_of`."""
    return SearchSpace.of(graph_of(name))


def some_machine(seed: int, *, kinds: int = 1, ranks: int = 0, memory: float = float("inf")) -> SearchMachine:
    """Any prices. kinds: of devices, and so of ratio vectors."""
    draw = random.Random(seed)
    ranks = ranks or draw.choice([2, 4, 8])
    speeds = [1.0 if place < ranks // 2 or kinds == 1 else 0.3 for place in range(ranks)]
    vectors = [(1 / ranks,) * ranks] + [tuple(s / sum(speeds) for s in speeds)] * (kinds - 1)
    peak, bandwidth = 10 ** draw.uniform(8, 13), 10 ** draw.uniform(8, 12)

    def price() -> LinkPrice:
        return LinkPrice(((10 ** draw.uniform(-8, -5), 10 ** draw.uniform(-12, -7)),))

    return SearchMachine(
        ranks=ranks,
        vertices=tuple(vectors),
        lanes=tuple(
            dict.fromkeys(
                Lane(_rates(peak * speed, bandwidth * speed), tuple(v[place] for v in vectors), 1.0, memory)
                for place, speed in enumerate(speeds)
            )
        ),
        gathers=tuple(price() for _ in vectors),
        scatters=tuple(price() for _ in vectors),
        exchanges=tuple(tuple(price() for _ in vectors) for _ in vectors),
        reslices=tuple(
            tuple(LinkPrice() if one is other else price() for other in vectors) for one in vectors
        ),
        reduces=price(),
        all_reduces=price(),
        param_gathers=price(),
    )


@cache
def _rates(peak: float, bandwidth: float) -> DeviceRates:
    return DeviceRates(DeviceSpec("cpu", peaks={"float32": peak}, memory_bandwidth=bandwidth), "cpu")
