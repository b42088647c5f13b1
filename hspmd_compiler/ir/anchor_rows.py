"""Which anchors a graph has, and the graph without those that nobody asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .graph import LogicalGraph, Ref, Row, map_refs, moved
from .own_names import ANCHOR, anchor_name
from .prune import with_rows


@dataclass(frozen=True, slots=True)
class AnchorPlace:
    """An anchor. row: of its value; layer: of that, None outside the layers; where: the user's line."""

    name: str
    row: int
    shape: tuple[int, ...]
    layer: int | None
    where: str


def anchors_of(graph: LogicalGraph) -> tuple[AnchorPlace, ...]:
    """All anchors, in the order of the forward pass."""
    return tuple(
        AnchorPlace(str(row.args[1]), row.id, tuple(row.shape or ()), row.layer, row.where)
        for row in graph.rows
        if row.op == ANCHOR
    )


def keep_anchors(graph: LogicalGraph, keep: Callable[[str], bool]) -> LogicalGraph:
    """The graph without the anchors whose name isn't kept; what reads one reads the value before it."""
    place: list[int] = []
    rows: list[Row] = []
    for row in graph.rows:
        name = anchor_name(row)
        if name is not None and not keep(name):
            (source,) = (ref.id for ref in row.args if isinstance(ref, Ref))
            place.append(place[source])
            continue
        place.append(len(rows))
        rows.append(row)
    if len(rows) == len(graph.rows):
        return graph

    def new(ref: Ref) -> Ref:
        return Ref(place[ref.id])

    return with_rows(
        graph,
        [
            moved(
                row,
                number,
                tuple(map_refs(value, new) for value in row.args),
                {key: map_refs(value, new) for key, value in row.kwargs.items()},
            )
            for number, row in enumerate(rows)
        ],
        place.__getitem__,
    )
