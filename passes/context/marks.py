"""A member's rows: they know its tokens, and attention is marked, to be written when steps are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from ...base.comm_plan import Interval
from ...errors import DeduceError, InternalError
from ...ir.annotated import STEP_REDUCE, AnnotatedRow, AnnotatedValue, PipelineGraph
from ...layout.layout import Layout
from ...program.program import ALIASES
from .lengths import LengthGraphs
from .token_rows import COUNTERS, PAD, SLICE, TokenRows

FORWARD, BACKWARD = "hspmd.attention", "hspmd.attention_backward"
PACKED, PACKED_BACKWARD = "hspmd.packed_attention", "hspmd.packed_attention_backward"
OPERANDS = {FORWARD: (0, 1, 2), BACKWARD: (1, 2, 3), PACKED: (0, 1, 2), PACKED_BACKWARD: (1, 2, 3)}
"""Where query, key and value stand."""
LITERALS = {FORWARD: 3, BACKWARD: 6}
"""Where mask, dropout, whether it is causal, and scale stand, one after the other."""
DOCUMENTS = {PACKED: 3, PACKED_BACKWARD: 6}
"""Where documents stand; behind them whether it is causal, the window, and scale."""
MARK = "meets"
"""Argument of a marked row: which of the pipeline's attention rows it is."""
ALIAS = "aten.alias.default"


@dataclass(frozen=True, slots=True)
class Attention:
    """An attention row of a member. layouts: of query, key and value."""

    op: str
    stage: int
    where: str
    layouts: tuple[Layout, Layout, Layout]
    causal: bool
    scale: float | None
    dtype: torch.dtype
    window: int = 0


def marked(
    graph: PipelineGraph, rows: TokenRows, graphs: LengthGraphs, runs: Sequence[Interval]
) -> tuple[PipelineGraph, list[Attention]]:
    """The pipeline of a member that has these tokens, and its attention in order."""
    marker = _Marker(graph, rows, tuple(runs))
    made = [marker.of(row) for row in graph.rows]
    _check_sums(graph, graphs)
    return replace(graph, rows=made), marker.found


class _Marker:
    def __init__(self, graph: PipelineGraph, rows: TokenRows, runs: tuple[Interval, ...]) -> None:
        self.rows, self.runs = rows, runs
        self.made = {row.out.id: row for row in graph.rows}
        self.found: list[Attention] = []

    def of(self, row: AnnotatedRow) -> AnnotatedRow:
        if row.op in COUNTERS and row.out.logical in self.rows.positions:
            return replace(row, op="hspmd.token_positions", args=(self.runs, row.out.dtype), kwargs={})
        if row.op == SLICE and row.out.logical in self.rows.shifts:
            return self._given(row)
        if row.op in OPERANDS:
            self.found.append(_attention(row))
            return replace(row, kwargs={**row.kwargs, MARK: len(self.found) - 1})
        return row

    def _given(self, row: AnnotatedRow) -> AnnotatedRow:
        """The batch brings the input as the model shifts it."""
        padded = self._behind(row.reads[0])
        source = padded.reads[0] if padded is not None and padded.op == PAD else None
        if source is None or source.layout != row.out.layout:
            raise InternalError("a shifted input lies in another way than the input", at=row.where)
        return replace(row, op=ALIAS, args=(source,), kwargs={}, reads=(source,))

    def _behind(self, value: AnnotatedValue) -> AnnotatedRow | None:
        row = self.made.get(value.id)
        while row is not None and row.op in ALIASES:
            row = self.made.get(row.reads[0].id)
        return row


def _attention(row: AnnotatedRow) -> Attention:
    query, key, value = (row.reads[place] for place in OPERANDS[row.op])
    layouts = query.layout, key.layout, value.layout
    if row.op in DOCUMENTS:
        causal, window, scale, *_ = row.args[DOCUMENTS[row.op] + 1 :]
        assert isinstance(window, int), "a count of tokens"
    else:
        mask, dropout, causal, scale, *places = row.args[LITERALS[row.op] :]
        window = 0
        if mask is not None or dropout or places:
            raise DeduceError(
                "attention of a member of a context group has more than a causal mask",
                at=row.where,
                rule="members meet in attention that is causal or of all tokens, its queries uncut",
                fix="leave out the strategy's `context`, or its `layouts` of queries",
            )
    assert scale is None or isinstance(scale, (int, float)), "a number"
    scale = None if scale is None else float(scale)
    return Attention(row.op, row.stage, row.where, layouts, bool(causal), scale, query.dtype, window)


def _check_sums(graph: PipelineGraph, graphs: LengthGraphs) -> None:
    """What all pipelines add to has no tokens: each has others."""
    wrong = [row for row in graph.rows if any(graphs.token_dims(number) for number in _summed(row))]
    if wrong:
        raise DeduceError(
            "a sum over samples is kept for each token",
            at=list(dict.fromkeys(row.where for row in wrong)),
            rule="members of a context group have other tokens, so that they sum other ones",
            fix="leave out the strategy's `context`, or change that line of the model",
        )


def _summed(row: AnnotatedRow) -> Iterator[int]:
    if row.op == STEP_REDUCE and isinstance(row.args[1], int):
        yield row.args[1]
    if row.marker is not None and row.marker.batch_sum is not None:
        yield row.marker.batch_sum.row
