"""What a row is made of, down to the tensors that a step is given."""

from __future__ import annotations

from .graph import LogicalGraph, row_inputs
from .prune import PLACEHOLDER


def sources(graph: LogicalGraph, row: int) -> list[int]:
    """Placeholders that a row depends on, itself too, where it is one."""
    needed, found = {row}, []
    for each in reversed(graph.rows[: row + 1]):
        if each.id in needed:
            needed.update(row_inputs(each))
            if each.op == PLACEHOLDER:
                found.append(each.id)
    return found[::-1]
