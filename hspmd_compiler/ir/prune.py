"""Numbers the rows of a graph anew, without those that nothing needs; and what a row is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from .graph import LogicalGraph, Ref, Row, map_refs, moved, row_inputs

PLACEHOLDER = "placeholder"


def prune(graph: LogicalGraph) -> LogicalGraph:
    """The graph without dead rows; placeholders stay."""
    live = _live(graph)
    ids = {row.id: number for number, row in enumerate(row for row in graph.rows if row.id in live)}
    if len(ids) == len(graph.rows):
        return graph
    new = {old: Ref(number) for old, number in ids.items()}
    rows = [_renumbered(row, new) for row in graph.rows if row.id in live]
    return with_rows(graph, rows, ids.__getitem__)


def with_rows(graph: LogicalGraph, rows: list[Row], new: Callable[[int], int]) -> LogicalGraph:
    """The graph of other rows. new: the place that an old row, or what stands for it, has among them."""
    return replace(
        graph,
        rows=rows,
        params={
            name: replace(info, row=new(info.row), grad=None if info.grad is None else new(info.grad))
            for name, info in graph.params.items()
        },
        inputs={name: replace(info, row=new(info.row)) for name, info in graph.inputs.items()},
        loss=new(graph.loss),
        tangent=new(graph.tangent),
        mutated={name: new(row) for name, row in graph.mutated.items()},
    )


def _live(graph: LogicalGraph) -> set[int]:
    live = {row.id for row in graph.rows if row.op == PLACEHOLDER}
    live |= {graph.loss, *graph.mutated.values()}
    live |= {info.grad for info in graph.params.values() if info.grad is not None}
    for row in reversed(graph.rows):
        if row.id in live:
            live.update(row_inputs(row))
    return live


def _renumbered(row: Row, new: Mapping[int, Ref]) -> Row:
    named = {key: map_refs(value, lambda ref: new[ref.id]) for key, value in row.kwargs.items()}
    return moved(row, new[row.id].id, _changed(row.args, new), named)


def _changed(values: Sequence[object], new: Mapping[int, Ref]) -> tuple[object, ...]:
    return tuple(
        [
            new[value.id]
            if type(value) is Ref
            else _changed(value, new)
            if isinstance(value, (tuple, list))
            else value
            for value in values
        ]
    )


def sources(graph: LogicalGraph, row: int) -> list[int]:
    """Placeholders that a row depends on, itself too, where it is one."""
    needed, found = {row}, []
    for each in reversed(graph.rows[: row + 1]):
        if each.id in needed:
            needed.update(row_inputs(each))
            if each.op == PLACEHOLDER:
                found.append(each.id)
    return found[::-1]
