"""Sums of a parameter's gradients from different stages, which grad sync adds and no row does."""

from __future__ import annotations

from ...ir.graph import LogicalGraph, refs_of

SUM_OPS = "aten.add.Tensor"


def untied_sums(graph: LogicalGraph, stages: list[int], operands: list[list[int]]) -> set[int]:
    """Sums of a parameter's gradients from different stages: grad sync adds these, no row does.

    Each stage gives at most one addend of a parameter. Where more would come from one stage, or one
    from no stage of its own, the sums stay rows, which know how their operands lie.
    """
    users: dict[int, int] = {}
    for read in operands:
        for operand in read:
            users[operand] = users.get(operand, 0) + 1
    found: set[int] = set()
    for info in graph.params.values():
        if info.grad is not None:
            found |= _sums_of(graph, info.grad, stages, users)
    return found


def _sums_of(graph: LogicalGraph, grad: int, stages: list[int], users: dict[int, int]) -> set[int]:
    """The sums of one parameter's gradient, none where two addends are of one stage."""
    found: set[int] = set()
    read_once: set[int] = {grad} if not users.get(grad) else set()
    queue = [grad]
    while queue:
        row = graph.rows[queue.pop()]
        refs = [ref.id for ref in refs_of(row.args)]
        plain = row.op == SUM_OPS and len(refs) == 2 and not row.kwargs and len(row.args) == 2
        if plain and row.id in read_once and stages[refs[0]] != stages[refs[1]]:
            found.add(row.id)
            read_once |= {ref for ref in refs if users[ref] == 1}
            queue += refs
    places = [stages[term] for term in terms(graph, grad, found)]
    return found if len(set(places)) == len(places) and min(places) >= 0 else set()


def terms(graph: LogicalGraph, row: int, sums: set[int]) -> list[int]:
    """The rows whose sum a gradient is."""
    if row not in sums:
        return [row]
    return [term for ref in refs_of(graph.rows[row].args) for term in terms(graph, ref.id, sums)]
