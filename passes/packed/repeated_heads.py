"""How often key and value heads were repeated before attention, read off the rows that repeat them."""

from __future__ import annotations

from ...ir.graph import LogicalGraph, Ref, Row

EXPAND = "aten.expand.default"
COPIES = frozenset({"aten.clone.default", "aten._to_copy.default"})
VIEWS = frozenset({"aten.view.default", "aten._unsafe_view.default", "aten.reshape.default"})
REPEATED_DIM = 2
"""Of [batch, heads, copies, tokens, width]."""


def repeat_of(graph: LogicalGraph, *heads: object) -> int:
    """How many heads, one after the other, are copies of one; 1 where that isn't seen of both."""
    found = {_repeat(graph, each.id) if isinstance(each, Ref) else 1 for each in heads}
    return found.pop() if len(found) == 1 else 1


def _repeat(graph: LogicalGraph, number: int) -> int:
    """[b, h, t, w] that was viewed from [b, g, n, t, w], of which the n are one that was expanded."""
    row = graph.rows[number]
    shape = row.shape or ()
    if row.op not in VIEWS or len(shape) != 4:
        return 1
    wide = _made_by(graph, row)
    while wide.op in COPIES:
        wide = _made_by(graph, wide)
    if wide.op != EXPAND or wide.shape is None or len(wide.shape) != 5:
        return 1
    narrow = _made_by(graph, wide).shape or ()
    batch, groups, copies, tokens, width = wide.shape
    plain = narrow == (batch, groups, 1, tokens, width) and shape == (batch, groups * copies, tokens, width)
    return copies if plain else 1


def _made_by(graph: LogicalGraph, row: Row) -> Row:
    source = row.args[0]
    return graph.rows[source.id] if isinstance(source, Ref) else row
