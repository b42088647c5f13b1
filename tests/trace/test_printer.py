"""The text of a graph is pinned; the summary counts what is there."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import nn

from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.ir.printer import aligned, format_graph, parameter_table, summarize

Made = tuple[nn.Module, dict[str, torch.Tensor]]


def test_text(graphs: dict[str, LogicalGraph], expect: Callable[[str, str], None]) -> None:
    text = format_graph(graphs["mlp"])
    expect("graph/mlp", re.sub(r"conftest\.py:\d+", "conftest.py:N", text))


def test_tables(graphs: dict[str, LogicalGraph], expect: Callable[[str, str], None]) -> None:
    summary = summarize(graphs["gpt2"])
    counts = [(op, str(forward), str(backward)) for op, forward, backward in summary.operators]
    operators = aligned([("operator", "forward", "backward"), *counts])
    expect("graph/gpt2_tables", "\n".join([*operators, "", *parameter_table(summary)]))


def test_summary(gpt2: Made, graphs: dict[str, LogicalGraph]) -> None:
    model, _ = gpt2
    graph = graphs["gpt2"]
    summary = summarize(graph)
    placeholders = sum(row.op == "placeholder" for row in graph.rows)
    assert summary.forward + summary.backward + placeholders == summary.rows == len(graph.rows)
    assert (
        sum(forward + backward for _, forward, backward in summary.operators) == summary.rows - placeholders
    )
    assert summary.trainable_elements == sum(p.numel() for p in model.parameters())
    assert summary.inputs == (("input_ids", "i64[5,12]"), ("labels", "i64[5,12]"))
    assert summary.layers == ("transformer.h.0", "transformer.h.1")
    assert summary.without_gradient == ()
