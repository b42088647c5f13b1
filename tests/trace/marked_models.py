"""Small models with a marker at every place, and layouts drawn for some of the markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from hspmd_compiler import comm
from hspmd_compiler.annotations import DistributedStates, Duplicate, Partial, Split
from hspmd_compiler.ir.graph import Row
from hspmd_compiler.ir.own_names import is_marker
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy

from ..annotations.strategies import splits
from ..training.equal_to_eager import Case

SAMPLES, TOKENS, WIDTH, INNER, HEADS = 4, 5, 8, 7, 4
Marks = Mapping[str, str]
"""A text for some of the places."""


@dataclass(frozen=True)
class Place:
    """Where a marker stands. pending: the value is a sum over ranks there."""

    shape: tuple[int, ...]
    pending: bool = False
    weight: bool = False


class Dense(nn.Module):
    """Norm, up, GELU, down, beside the input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        inner = comm(nn.functional.gelu(comm(self.up(comm(self.norm(x), "norm")), "up")), "gelu")
        weight = comm(self.down.weight, "weight")
        return comm(x + comm(nn.functional.linear(inner, weight, self.down.bias), "down"), "dense")


class Attention(nn.Module):
    """Some heads, beside the input."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (_heads(layer(x)) for layer in (self.q, self.k, self.v))
        scores = comm(comm(q, "query") @ k.transpose(-1, -2), "scores")
        mixed = (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)
        return x + comm(self.mix(comm(mixed, "mixed")), "attention")


def _heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class Marked(nn.Module):
    """Attention, then a dense layer, then a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Attention(), Dense()])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = comm(x, "x")
        for layer in self.layers:
            x = comm(layer(x), "between")
        return nn.functional.mse_loss(comm(self.head(x), "logits"), y)


ROWS = (SAMPLES, TOKENS, WIDTH)
PLACES = {
    "x": Place(ROWS),
    "query": Place((SAMPLES, HEADS, TOKENS, WIDTH // HEADS)),
    "scores": Place((SAMPLES, HEADS, TOKENS, TOKENS)),
    "mixed": Place(ROWS),
    "attention": Place(ROWS, pending=True),
    "between": Place(ROWS),
    "norm": Place(ROWS),
    "up": Place((SAMPLES, TOKENS, INNER)),
    "gelu": Place((SAMPLES, TOKENS, INNER)),
    "weight": Place((WIDTH, INNER), weight=True),
    "down": Place(ROWS, pending=True),
    "dense": Place(ROWS),
    "logits": Place((SAMPLES, TOKENS, 3)),
}


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(ROWS, generator=generator),
        "y": torch.randn((SAMPLES, TOKENS, 3), generator=generator),
    }


@cache
def traced() -> Case:
    return Case.of(Marked, batch())


def with_marks(case: Case, marks: Marks) -> Case:
    """A traced model with these texts in its markers, and without the markers of other places."""

    def written(row: Row) -> Row:
        if not is_marker(row.op):
            return row
        place = str(row.args[1])
        if place in marks:
            return replace(row, args=(row.args[0], marks[place]))
        return replace(row, op="aten.alias.default", args=row.args[:1])

    return replace(case, graph=replace(case.graph, rows=[written(row) for row in case.graph.rows]))


ALL, FIRST, SECOND = (0, 2), (0, 1), (1, 2)
STRATEGIES = (
    Strategy((P((S((0, 1, 2, 3), ALL),), (4,)),)),
    Strategy((P((S((0, 1, 2, 3), ALL),), (3, 1)),)),
    Strategy((P((S((2, 0, 4, 3, 1, 5), ALL, (1, 0, 1, 1, 0, 1)),), (1, 2, 1)),)),
    Strategy((P((S((0, 1, 2, 3), ALL),), (3, 1)),), sequence_parallel=True),
    Strategy((P((S((0, 1), FIRST), S((2, 3, 4, 5), SECOND)), (2, 1)), P((S((9, 8, 7, 6), ALL),), (1,)))),
    Strategy((P((S(tuple(range(8)), ALL, (0, 1, 0, 1, 1, 0, 0, 1)),), (4,)),)),
)
FACTORS = {
    2: [(2,)],
    4: [(4,), (2, 2)],
    6: [(6,), (2, 3), (3, 2)],
    8: [(2, 4), (4, 2), (2, 2, 2)],
}


@st.composite
def states(draw: st.DrawFn, ranks: int, place: Place) -> DistributedStates:
    """Placements on so many ranks, in any order; samples are cut evenly, as micro-batches have any size."""
    keys: list[object] = ["D", *(["P", "P"] if place.pending else []), *range(len(place.shape))]
    chosen = list(dict.fromkeys(draw(st.permutations(keys))))
    found: list[Split | Duplicate | Partial] = []
    for key, parts in zip(chosen, draw(st.sampled_from(FACTORS[ranks])), strict=False):
        if key == "D":
            found.append(Duplicate(parts))
        elif key == "P":
            found.append(Partial(parts))
        elif key == 0 and not place.weight:
            found.append(Split(0, parts))
        else:
            assert isinstance(key, int)
            found.append(draw(splits(key, parts, place.shape[key])))
    return DistributedStates(tuple(found))


@st.composite
def marks(draw: st.DrawFn, strategy: Strategy) -> Marks:
    """Layouts of one to three places, for all stages."""
    names = draw(st.lists(st.sampled_from(sorted(PLACES)), min_size=1, max_size=3, unique=True))
    return {name: draw(texts(strategy, PLACES[name])) for name in names}


@st.composite
def texts(draw: st.DrawFn, strategy: Strategy, place: Place) -> str:
    """One subgroup for each stage, its devices in any order."""
    stages = [stage for pipeline in strategy.pipelines for stage in pipeline.stages]
    groups = [",".join(map(str, draw(st.permutations(stage.devices)))) for stage in stages]
    parts = [str(draw(states(stage.tp, place))) for stage in stages]
    hetero = "" if len(stages) == 1 else "  hetero=dup" if place.weight else "  hetero=0"
    return f"[{' | '.join(groups)}]  <{' | '.join(parts)}>{hetero}"


@st.composite
def programs(draw: st.DrawFn, among: Sequence[Strategy] = STRATEGIES) -> tuple[Marks, Strategy]:
    """A strategy, and layouts of some places."""
    strategy = draw(st.sampled_from(among))
    return draw(marks(strategy)), strategy
