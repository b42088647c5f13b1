"""Drops the rows of a graph that nothing needs, and numbers the rest anew."""

from __future__ import annotations

from dataclasses import replace

from .ir import LogicalGraph, Ref, Row, map_refs, row_inputs

PLACEHOLDER = "placeholder"


def prune(graph: LogicalGraph) -> LogicalGraph:
    """The graph without dead rows; placeholders stay."""
    live = _live(graph)
    ids = {row.id: number for number, row in enumerate(row for row in graph.rows if row.id in live)}
    if len(ids) == len(graph.rows):
        return graph
    return LogicalGraph(
        [_renumbered(row, ids) for row in graph.rows if row.id in live],
        {
            name: replace(info, row=ids[info.row], grad=None if info.grad is None else ids[info.grad])
            for name, info in graph.params.items()
        },
        {name: replace(info, row=ids[info.row]) for name, info in graph.inputs.items()},
        ids[graph.loss],
        ids[graph.tangent],
        graph.batch,
        graph.layers,
        {name: ids[row] for name, row in graph.mutated.items()},
    )


def _live(graph: LogicalGraph) -> set[int]:
    live = {row.id for row in graph.rows if row.op == PLACEHOLDER}
    live |= {graph.loss, *graph.mutated.values()}
    live |= {info.grad for info in graph.params.values() if info.grad is not None}
    for row in reversed(graph.rows):
        if row.id in live:
            live.update(row_inputs(row))
    return live


def _renumbered(row: Row, ids: dict[int, int]) -> Row:
    def moved(ref: Ref) -> Ref:
        return Ref(ids[ref.id])

    args = tuple(map_refs(argument, moved) for argument in row.args)
    kwargs = {key: map_refs(value, moved) for key, value in row.kwargs.items()}
    return replace(row, id=ids[row.id], args=args, kwargs=kwargs)
