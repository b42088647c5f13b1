"""Anchors of unmodified models: where they stand, what they are called, and that they change nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hspmd_compiler.ir.anchor_rows import anchors_of, keep_anchors
from hspmd_compiler.ir.graph import Phase
from hspmd_compiler.ir.own_names import ANCHOR, ANCHOR_BACKWARD, anchor_name, renamed_anchor
from hspmd_compiler.ir.printer import format_graph
from hspmd_compiler.options import Capture, Precision
from hspmd_compiler.trace.blocks.trace_step import trace_step

from .anchored_models import Varied

X, Y = torch.zeros(2, 3, 8), torch.zeros(2, 3, 4)
BATCH = {"x": X, "y": Y}
PER_LAYER = (
    *("self_attn.linear", "self_attn.contiguous", "self_attn.scaled_dot_product_attention"),
    *("self_attn.reshape", "self_attn.linear#2", "dropout1", "add", "norm1", "linear1", "relu", "dropout"),
    *("linear2", "dropout2", "add#2", "norm2"),
)


class Deep(nn.Module):
    """Encoder layers: blocks that are alike."""

    def __init__(self, layers: int = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return functional.mse_loss(self.head(x), y)


NAMES = (
    *("x", "y", "up", "scaled.mul", "scaled.mul#2", "up#2", "attention.linear", "attention.contiguous"),
    *("attention.mul", "attention.bmm", "attention.softmax", "attention.dropout", "attention.bmm#2"),
    *("attention.reshape", "attention.linear#2", "x#2", "add", "matmul"),
)


def names(model: nn.Module, capture: Capture = Capture.AUTO, globs: tuple[str, ...] = ("*",)) -> list[str]:
    graph = trace_step(model, BATCH, batch=4, capture=capture, anchors=globs).graph
    assert [anchor_name(row) for row in graph.rows if row.op == ANCHOR] == [a.name for a in anchors_of(graph)]
    return [anchor.name for anchor in anchors_of(graph)]


@pytest.mark.parametrize("capture", Capture)
def test_names(capture: Capture) -> None:
    """The same however a model is traced; blocks that stand for others give theirs their own names."""
    layers = 5 if capture is Capture.AUTO else 1
    assert names(Deep(layers), capture) == [
        *("x", "y"),
        *(f"layers.{layer}.{name}" for layer in range(layers) for name in PER_LAYER),
        "head",
    ]
    assert names(Varied(), capture) == list(NAMES)


def test_an_anchor_says_where_it_stands() -> None:
    graph = trace_step(Deep(), BATCH, batch=4, anchors=("layers.3.linear1",)).graph
    (found,) = anchors_of(graph)
    assert (found.shape, found.layer) == ((4, 3, 16), 3)
    assert found.where.endswith("in Deep.forward  x = layer(x)")
    rows = {row.op: row for row in graph.rows if anchor_name(row) == "layers.3.linear1"}
    assert {op: row.phase for op, row in rows.items()} == {
        ANCHOR: Phase.FORWARD,
        ANCHOR_BACKWARD: Phase.BACKWARD,
    }
    assert {row.layer for row in rows.values()} == {3}


@pytest.mark.parametrize("capture", [Capture.AUTO, pytest.param(Capture.FULL, marks=pytest.mark.slow)])
def test_without_its_anchors_a_graph_is_as_if_there_had_been_none(capture: Capture) -> None:
    plain = format_graph(trace_step(Deep(), BATCH, batch=4).graph)
    marked = trace_step(Deep(), BATCH, batch=4, capture=capture, anchors=("*",)).graph
    assert format_graph(keep_anchors(marked, lambda _: False)) == plain
    assert format_graph(trace_step(Deep(), BATCH, batch=4, anchors=("nothing",)).graph) == plain


def test_globs_are_of_whole_names() -> None:
    assert names(Deep(), globs=("**.linear1", "layers.[1-2].add#2", "**.3.norm?", "layers.0", "add")) == [
        *("layers.0.linear1", "layers.1.linear1", "layers.1.add#2", "layers.2.linear1", "layers.2.add#2"),
        *("layers.3.norm1", "layers.3.linear1", "layers.3.norm2", "layers.4.linear1"),
    ]


def test_narrow_models_have_the_same() -> None:
    graph = trace_step(Deep(2), BATCH, batch=4, precision=Precision.BFLOAT16, anchors=("*",)).graph
    assert [anchor.name for anchor in anchors_of(graph)] == names(Deep(2))


def test_a_block_of_another_name() -> None:
    assert renamed_anchor("layers.1.add#2", "layers.1", "layers.7") == "layers.7.add#2"
    assert renamed_anchor("layers.1#2", "layers.1", "layers.7") == "layers.7#2"
    assert renamed_anchor("layers.10.add", "layers.1", "layers.7") == "layers.10.add"
