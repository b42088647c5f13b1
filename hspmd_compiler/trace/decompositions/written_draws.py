"""Random operators of a graph written out as the basic ones and plain arithmetic: see `random_parts`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ...ir.fx_convert import RowFacts, rows_of
from ...ir.graph import LogicalGraph, Ref, Row, refs_of
from ...ir.prune import with_rows
from ...program.kernels.counter_numbers import EXPONENTIAL, NORMAL, UNIFORM
from ..capture import trace_decomposed
from .decompose import Parts, Writing, call_of, changed, has_rule, meta_of
from .random_parts import BY_NAME
from .random_rows import BASIC, is_basic, is_drawn_by_position


def draws_written_out(graph: LogicalGraph) -> LogicalGraph:
    """The graph whose random numbers are drawn by basic operators. Nothing is pruned, for eager draws what
    nobody reads, too."""
    found = {row.id: _parts(row, graph.rows) for row in graph.rows if _is_written_out(row)}
    if not found:
        return graph
    writing = Writing(found)
    for row in graph.rows:
        writing.add(row)
    return with_rows(graph, writing.rows, lambda old: writing.new[old].id)


def _is_written_out(row: Row) -> bool:
    return row.op in BY_NAME and is_drawn_by_position(row) and not is_basic(row)


def _parts(row: Row, rows: Sequence[Row]) -> Parts:
    refs = list(dict.fromkeys(refs_of((row.args, row.kwargs))))
    metas = [meta for ref in refs if (meta := meta_of(rows[ref.id])) is not None]
    args, kwargs = changed(row, {ref: Ref(place) for place, ref in enumerate(refs)}.__getitem__)

    def written(*given: Any, **named: Any) -> Any:
        return BY_NAME[row.op](_basic, *given, **named)

    graph = trace_decomposed(
        call_of(written, args, kwargs), metas, {}, lambda op: str(op) in BASIC or has_rule(str(op))
    )
    made, ids = rows_of(graph.nodes, lambda node: RowFacts())
    outputs = graph.output_node().args[0]
    results = tuple(ids[node] if isinstance(node, fx.Node) else None for node in outputs)  # type: ignore[union-attr]
    return Parts(len(metas), tuple(made), results)


def _basic(kind: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A call of the operator that draws this kind."""
    if kind == UNIFORM:
        return torch.rand(list(shape), dtype=dtype)
    if kind == NORMAL:
        return torch.randn(list(shape), dtype=dtype)
    aten = torch.ops.aten
    operator = aten.exponential if kind == EXPONENTIAL else aten.random
    made: Tensor = operator.default(torch.empty(list(shape), dtype=dtype))
    return made
