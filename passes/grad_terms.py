"""Sums of a parameter's gradients from different stages, which grad sync adds and no row does."""

from __future__ import annotations

from ..graph.ir import LogicalGraph, refs_of

SUM_OPS = "aten.add.Tensor"


def untied_sums(graph: LogicalGraph, stages: list[int], operands: list[list[int]]) -> set[int]:
    """Sums of a parameter's gradients from different stages: grad sync adds these, no row does."""
    users: dict[int, int] = {}
    for read in operands:
        for operand in read:
            users[operand] = users.get(operand, 0) + 1
    found: set[int] = set()
    queue = [info.grad for info in graph.params.values() if info.grad is not None]
    while queue:
        row = graph.rows[queue.pop()]
        refs = [ref.id for ref in refs_of(row.args)]
        plain = row.op == SUM_OPS and len(refs) == 2 and not row.kwargs and len(row.args) == 2
        if plain and not users.get(row.id) and stages[refs[0]] != stages[refs[1]]:
            found.add(row.id)
            for ref in refs:
                users[ref] -= 1
            queue += refs
    return found


def terms(graph: LogicalGraph, row: int, sums: set[int]) -> list[int]:
    if row not in sums:
        return [row]
    return [term for ref in refs_of(graph.rows[row].args) for term in terms(graph, ref.id, sums)]
