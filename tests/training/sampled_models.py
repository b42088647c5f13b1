"""Models whose input a marker lays out, and ways in which ranks share the samples of each micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from hspmd_compiler import comm
from hspmd_compiler.ir.annotated import COMM, AnnotatedRow, PipelineGraph
from hspmd_compiler.ir.own_names import is_marker
from hspmd_compiler.layout.layout import Coordinate
from hspmd_compiler.passes.annotate import annotate
from hspmd_compiler.passes.deduction.deduce_all import deduce
from hspmd_compiler.strategy.strategy import (
    Override,
    PipelineSpec,
    Recompute,
    RecomputeKind,
    StageSpec,
    Strategy,
)

from .equal_to_eager import Case

HERE = "x"
"""The text of a marker that a test writes anew."""
F = nn.functional
TOKENS, WIDTH, CLASSES = 5, 8, 5
Batch = dict[str, Tensor]


class Mlp(nn.Module):
    """Norm and dropout between two products; a mean over the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 10), nn.LayerNorm(10), nn.Linear(10, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        inner = self.norm(torch.relu(self.up(comm(x, HERE))))
        return F.cross_entropy(self.down(F.dropout(inner, 0.3)), y)


class ConvNet(nn.Module):
    """Convolutions, pools and a group norm; a sum over the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3)
        self.norm, self.head = nn.GroupNorm(2, 4), nn.Linear(24, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        inner = F.max_pool2d(F.relu(self.first(comm(x, HERE))), 2)
        inner = F.adaptive_avg_pool2d(F.relu(self.second(self.norm(inner))), 2)
        return F.cross_entropy(self.head(inner.flatten(1)), y, reduction="sum")


class Encoder(nn.Module):
    """Two encoder layers of PyTorch, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 12, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = comm(x, HERE)
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(self.head(x.mean(1)), F.one_hot(y, CLASSES).float())


class Language(nn.Module):
    """Ids looked up, places added, fused attention, and cross-entropy over all tokens read as one dim."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.mix, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 11)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        inner = self.tokens(comm(x, HERE)) + self.places(torch.arange(TOKENS))
        parts = self.mix(inner).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        inner = self.norm(inner + mixed.transpose(1, 2).flatten(2))
        return F.cross_entropy(self.head(inner).flatten(0, 1), y.flatten(), ignore_index=3)


class Chunks(nn.Module):
    """A loss in chunks of all tokens, whose bounds lie inside samples."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.head = nn.Linear(WIDTH, 12), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        inner, y = F.gelu(self.up(comm(x, HERE))).flatten(0, 1), y.repeat_interleave(TOKENS)
        chunks = zip(inner.split(7), y.split(7), strict=True)
        losses = [F.cross_entropy(self.head(each), labels, reduction="sum") for each, labels in chunks]
        return torch.stack(losses).sum() / len(y)


MODELS: dict[str, type[nn.Module]] = {
    "mlp": Mlp,
    "conv": ConvNet,
    "encoder": Encoder,
    "language": Language,
    "chunks": Chunks,
}
LAYERS = {"encoder": 2}
SHAPES = {"mlp": (6,), "conv": (3, 8, 8), "encoder": (TOKENS, WIDTH), "chunks": (TOKENS, WIDTH)}


def batch_of(name: str, samples: int) -> Batch:
    """Random samples."""
    draws = torch.Generator().manual_seed(1)
    if name == "language":
        x, y = (torch.randint(0, 11, (samples, TOKENS), generator=draws) for _ in range(2))
        return {"x": x, "y": y}
    x = torch.randn((samples, *SHAPES[name]), generator=draws)
    return {"x": x, "y": torch.randint(0, CLASSES, (samples,), generator=draws)}


@cache
def traced(name: str, samples: int) -> Case:
    """Traced once for a number of samples."""
    return Case.of(MODELS[name], batch_of(name, samples))


def case_of(name: str, samples: int, text: str) -> Case:
    """The traced model with this text in its marker."""
    case = traced(name, samples)
    rows = [replace(row, args=(row.args[0], text)) if is_marker(row.op) else row for row in case.graph.rows]
    return replace(case, graph=replace(case.graph, rows=rows))


@dataclass(frozen=True)
class Shared:
    """One pipeline: how many ranks, its micro-batches, and the states of the samples in each of them."""

    ranks: int
    micro_batches: tuple[int, ...]
    states: str


def strategy_of(
    name: str, pipelines: Sequence[Shared], *overrides: Override, recompute: bool = False, **more: int
) -> Strategy:
    """All parameters whole but for overrides. more: accumulation, zero."""
    layers = (0, LAYERS.get(name, 1))
    kept = (Recompute(layers, RecomputeKind.FULL),) if recompute else ()
    specs, low = [], 0
    for each in pipelines:
        stage = StageSpec(tuple(range(low, low + each.ranks)), layers)
        specs.append(PipelineSpec((stage,), each.micro_batches, kept))
        low += each.ranks
    return Strategy(tuple(specs), overrides=(Override("*", duplicate=True), *overrides), **more)


def text_of(pipelines: Sequence[Shared]) -> str:
    """The annotation of the input."""
    groups, low = [], 0
    for each in pipelines:
        groups.append(",".join(map(str, range(low, low + each.ranks))))
        low += each.ranks
    hetero = " hetero=0" if len(pipelines) > 1 else ""
    return f"[{' | '.join(groups)}] <{' | '.join(each.states for each in pipelines)}>{hetero}"


def deduced(case: Case, strategy: Strategy) -> list[PipelineGraph]:
    """Local rows of each pipeline."""
    _, placements = annotate(case.graph, strategy)
    each = zip(range(len(placements)), strategy.pipelines, placements, strict=True)
    return [deduce(case.graph, number, spec, placement) for number, spec, placement in each]


def moved(graph: PipelineGraph) -> list[AnnotatedRow]:
    """Rows that communicate values with more than one element."""
    return [row for row in graph.rows if row.op == COMM and row.out.layout.shape != ()]


def lengths(graph: PipelineGraph, samples: int, ranks: int, batch: int) -> Iterator[list[int]]:
    """Of every value with a dim of samples, how many of them each rank has in one micro-batch."""
    for value in graph.logical.values():
        cut = value.layout.cut(ranks=False)
        if cut is not None:
            dim, size = cut[0], value.layout.shape[cut[0]]
            held = [value.layout.local_shape(Coordinate(rank, batch))[dim] for rank in range(ranks)]
            yield [length * samples // size for length in held]


@st.composite
def shared(draw: st.DrawFn) -> Shared:
    """Micro-batches of any sizes, evenly or by weights."""
    ranks = draw(st.integers(1, 3))
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    weights = draw(st.lists(st.integers(0, 4), min_size=ranks, max_size=ranks).filter(any))
    by_weight = f"S0({','.join(map(str, weights))})"
    return Shared(ranks, sizes, "R" if ranks == 1 else draw(st.sampled_from([f"S0x{ranks}", by_weight])))


@st.composite
def programs(draw: st.DrawFn, names: Sequence[str]) -> tuple[str, str, Strategy]:
    """A model, the text of its marker, and a strategy."""
    name = draw(st.sampled_from(names))
    pipelines = draw(st.lists(shared(), min_size=1, max_size=2))
    strategy = strategy_of(
        name,
        pipelines,
        recompute=draw(st.booleans()),
        zero=draw(st.integers(0, 3)),
        accumulation=draw(st.integers(1, 2)),
    )
    return name, text_of(pipelines), strategy
