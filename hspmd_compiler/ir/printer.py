"""A logical graph as stable text, one value a line, and the numbers that `hspmd trace` shows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from .graph import LogicalGraph, OriginKind, ParamInfo, Phase, Ref, Row
from .type_text import SHORT, dtype_name, type_text


def format_graph(graph: LogicalGraph) -> str:
    """Every row: value, type, operator with its arguments, layer, and the user's line at the end."""
    grads = {p.grad: name for name, p in graph.params.items() if p.grad is not None}
    notes = {graph.loss: "loss", **{i: f"grad {name}" for i, name in grads.items()}}
    notes |= {i: f"new {name}" for name, i in graph.mutated.items()}
    cells = [_cells(row, notes.get(row.id, "")) for row in graph.rows]
    return "\n".join(aligned(cells)) + "\n"


def aligned(rows: Iterable[tuple[str, ...]], widest: int = 72) -> Iterator[str]:
    """Columns side by side; a cell wider than `widest` does not widen its column."""
    rows = list(rows)
    columns = range(max((len(row) for row in rows), default=0))
    widths = [
        max((len(r[c]) for r in rows if c < len(r) and len(r[c]) <= widest), default=0) for c in columns
    ]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)).rstrip()


def _cells(row: Row, note: str) -> tuple[str, ...]:
    layer = "" if row.layer is None else f"layer {row.layer}"
    where = f"# {row.where}" if row.where else ""
    return (f"%{row.id}", row.phase.value, row_type(row), call_text(row), layer, note, where)


def row_type(row: Row) -> str:
    """Type of the value, of all outputs of an operator with several, or `none`."""
    if row.outs is not None:
        return "(" + ", ".join("none" if meta is None else type_text(*meta) for meta in row.outs) + ")"
    if row.shape is None or row.dtype is None:
        return "none"
    return type_text(row.shape, row.dtype)


def call_text(row: Row) -> str:
    """`mm(%1, %2)`; a placeholder is `param fc1.weight`."""
    if row.origin.kind is not OriginKind.ACTIVATION:
        return f"{row.origin.kind.value} {row.origin.name}".rstrip()
    parts = [literal_text(arg) for arg in row.args]
    parts += [f"{name}={literal_text(value)}" for name, value in row.kwargs.items()]
    return f"{operator_text(row.op)}({', '.join(parts)})"


def operator_text(op: str) -> str:
    """Without `aten.`, and without `.default`."""
    return op.removeprefix("aten.").removesuffix(".default")


def literal_text(value: object) -> str:
    """An argument as text: `%3` a value, `f32` a type."""
    if isinstance(value, Ref):
        return f"%{value.id}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(literal_text(item) for item in value) + "]"
    if isinstance(value, torch.dtype):
        return SHORT.get(dtype_name(value), dtype_name(value))
    return str(value).removeprefix("torch.") if not isinstance(value, str) else repr(value)


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """What a graph consists of. operators: (name, forward count, backward count), most frequent first."""

    batch: int
    rows: int
    forward: int
    backward: int
    operators: tuple[tuple[str, int, int], ...]
    layers: tuple[str, ...]
    params: tuple[ParamInfo, ...]
    trainable_elements: int
    inputs: tuple[tuple[str, str], ...]
    without_gradient: tuple[str, ...]


def summarize(graph: LogicalGraph) -> GraphSummary:
    """Count what `hspmd trace` prints."""
    counts = {phase: Counter(_operators(graph.rows, phase)) for phase in Phase}
    forward, backward = counts[Phase.FORWARD], counts[Phase.BACKWARD]
    names = sorted({*forward, *backward}, key=lambda op: (-forward[op] - backward[op], op))
    params = tuple(graph.params.values())
    return GraphSummary(
        graph.batch,
        len(graph.rows),
        forward.total(),
        backward.total(),
        tuple((op, forward[op], backward[op]) for op in names),
        graph.layers,
        params,
        sum(math.prod(p.shape) for p in params if p.trainable),
        tuple((i.name, type_text(i.shape, i.dtype)) for i in graph.inputs.values()),
        tuple(p.name for p in params if p.trainable and p.grad is None),
    )


def _operators(rows: Iterable[Row], phase: Phase) -> Iterator[str]:
    return (operator_text(row.op) for row in rows if row.phase is phase and row.op != "placeholder")


def parameter_table(summary: GraphSummary) -> list[str]:
    """Lines of the parameter table: name, type, what it is; tied names after the first."""
    return list(aligned((p.name, type_text(p.shape, p.dtype), _kind(p)) for p in summary.params))


def _kind(param: ParamInfo) -> str:
    tied = f", tied to {', '.join(param.aliases[1:])}" if len(param.aliases) > 1 else ""
    if param.is_buffer:
        return f"buffer{tied}"
    if not param.trainable:
        return f"frozen{tied}"
    return f"parameter{'' if param.grad is not None else ' without gradient, as in eager'}{tied}"
