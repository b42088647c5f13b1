"""Masks of packed rows: which kinds are found, what stays a mask, that both compute what the model does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import hspmd_compiler as hspmd
from hspmd_compiler.ir.graph import LogicalGraph, Row
from hspmd_compiler.ir.own_names import PACKED, PACKED_BACKWARD
from hspmd_compiler.passes.causal_mask import MASK, retarget_masks
from hspmd_compiler.passes.packed import packed_mask
from hspmd_compiler.passes.packed.packed_mask import LONGEST, retarget_packed
from hspmd_compiler.passes.packed.repeated_heads import repeat_of
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.trace.tracer import trace

Passes = Callable[[Tensor], Tensor]
SAMPLES = 4


def documents(positions: Tensor) -> Tensor:
    """Numbers of documents, as transformers counts them."""
    return (torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1).cumsum(-1)


def causal(positions: Tensor) -> Tensor:
    return (same(positions)) & (positions[:, None, :] <= positions[:, :, None])


def same(positions: Tensor) -> Tensor:
    numbers = documents(positions)
    return numbers[:, :, None] == numbers[:, None, :]


def window(positions: Tensor) -> Tensor:
    return causal(positions) & (positions[:, None, :] > positions[:, :, None] - 3)


def wide_window(positions: Tensor) -> Tensor:
    return causal(positions) & (positions[:, :, None] - positions[:, None, :] <= 1000)


def strictly_earlier(positions: Tensor) -> Tensor:
    return causal(positions) & (positions[:, None, :] < positions[:, :, None]) | (positions == 0)[:, None, :]


def documents_that_begin_at_zero(positions: Tensor) -> Tensor:
    numbers = (positions == 0).cumsum(-1)
    return (numbers[:, :, None] == numbers[:, None, :]) & torch.ones_like(causal(positions)).tril()


def first_pair_apart(positions: Tensor) -> Tensor:
    return causal(positions) & (positions[:, :1, None] == 0)


class Projections(nn.Module):
    """Twice as many heads of queries as of keys."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(8, 8), nn.Linear(8, 4)


class Packed(nn.Module):
    """Attention of repeated heads under a mask that positions tell."""

    def __init__(self, passes: Passes, additive: bool = False, heads: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.passes, self.additive, self.heads, self.dropout = passes, additive, heads, dropout
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(Projections() for _ in "ab")

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        mask = self.passes(positions)[:, None]
        if self.additive:
            mask = torch.where(mask, 0.0, float("-inf"))
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + self._attended(layer, x, mask)  # type: ignore[arg-type]
        return x.pow(2).mean()

    def _attended(self, layer: Projections, x: Tensor, mask: Tensor) -> Tensor:
        many, length = x.shape[:2]
        q = layer.q(x).view(many, length, self.heads, -1).transpose(1, 2)
        k = layer.kv(x).view(many, length, self.heads // 2, -1).transpose(1, 2)
        k = k[:, :, None].expand(-1, -1, 2, -1, -1).reshape(q.shape)
        out = scaled_dot_product_attention(q, k, k, attn_mask=mask, dropout_p=self.dropout)
        return out.transpose(1, 2).reshape(x.shape)


def batch(length: int = 9) -> dict[str, Tensor]:
    rows = [torch.arange(length) % (number + 3) for number in range(SAMPLES)]
    tokens = torch.arange(SAMPLES * length).view(SAMPLES, length) % 16
    return {"tokens": tokens, "positions": torch.stack(rows)}


def retargeted(model: nn.Module, length: int = 9) -> LogicalGraph:
    return retarget_packed(retarget_masks(trace(model, batch(length), batch=SAMPLES)))


def calls(graph: LogicalGraph) -> list[Row]:
    return [row for row in graph.rows if row.op in (PACKED, PACKED_BACKWARD)]


@pytest.mark.parametrize(
    ("passes", "literals", "additive", "length"),
    [
        (causal, (True, 0), False, 9),
        (causal, (True, 0), True, LONGEST + 2),
        (same, (False, 0), False, LONGEST + 2),
        (window, (True, 3), True, 14),
        (wide_window, (True, 1001), False, LONGEST + 2),
    ],
)
def test_kinds(passes: Passes, literals: tuple[bool, int], additive: bool, length: int) -> None:
    graph = retargeted(Packed(passes, additive), length)
    assert [row.op for row in calls(graph)] == [PACKED] * 2 + [PACKED_BACKWARD] * 2
    assert {row.args[-4:-2] for row in calls(graph)} == {literals}
    assert {row.args[-1] for row in calls(graph)} == {2}, "each head of keys is there twice"
    assert not any(MASK in row.kwargs for row in graph.rows)
    assert not any(row.op == "aten.cumsum.default" for row in graph.rows), "nothing is left of the mask"


@pytest.mark.parametrize(
    ("passes", "length"),
    [(strictly_earlier, 9), (documents_that_begin_at_zero, LONGEST + 2), (first_pair_apart, 14)],
)
def test_other_masks_stay(passes: Passes, length: int) -> None:
    """Equal to a kind for rows of documents is not enough: positions may be any."""
    graph = retargeted(Packed(passes), length)
    assert not calls(graph)
    assert sum(MASK in row.kwargs for row in graph.rows) == 4


def two_windows(positions: Tensor) -> Tensor:
    """Neither number alone is the window, and a short row reaches none."""
    ahead = positions[:, :, None] - positions[:, None, :]
    return causal(positions) & (ahead // 20 < 20)


def window_of_floats(positions: Tensor) -> Tensor:
    ahead = (positions[:, :, None] - positions[:, None, :]).float()
    return causal(positions) & (ahead < 40.0)


@pytest.mark.parametrize("passes", [two_windows, window_of_floats])
def test_a_number_that_short_rows_do_not_reach_is_no_kind_of_long_ones(
    passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At their own size they are too large to be computed."""
    monkeypatch.setattr(packed_mask, "MOST_ELEMENTS", 0)
    assert not calls(retargeted(Packed(passes), LONGEST + 2))
    assert calls(retargeted(Packed(causal), LONGEST + 2))
    assert calls(retargeted(Packed(wide_window), LONGEST + 2))


def test_dropped_weights_stay_under_the_mask() -> None:
    assert not calls(retargeted(Packed(causal, dropout=0.5)))


def test_heads_that_are_not_seen_to_be_alike() -> None:
    graph = trace(Packed(causal), batch(), batch=SAMPLES)
    (first, *_) = [row for row in graph.rows if MASK in row.kwargs]
    query, key, value = first.args[:3]
    assert repeat_of(graph, key, value) == 2
    assert repeat_of(graph, query, value) == 1


UNEQUAL = Strategy(
    (
        PipelineSpec((StageSpec((0, 1), (0, 1), shares=(3.0, 1.0)), StageSpec((2,), (1, 2))), (2, 1)),
        PipelineSpec((StageSpec((3,), (0, 2)),), (1,)),
    )
)


@pytest.mark.parametrize("passes", [window, strictly_earlier])
def test_unequal_ranks_compute_what_one_device_does(passes: Passes) -> None:
    """Heads 3:1, so that a pair of equal keys is cut; a mask that is of no kind is as exact."""
    program = hspmd.compile(lambda: (Packed(passes), batch()), strategy=UNEQUAL)
    program.verify(values=True, rows=True)


def test_documents_are_read_on_the_host() -> None:
    program = hspmd.compile(lambda: (Packed(causal), batch()), strategy=UNEQUAL)
    for shared in program.artifact.program.classes.values():
        for segment in shared.segments[:2]:
            assert [item.name for item in segment.inputs if item.kind.value == "documents"] == ["positions"]
            assert not any(row.op == "hspmd.document_starts" for row in segment.rows)
