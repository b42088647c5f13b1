"""Operators without a rule are replaced by plainer ones that have rules, where PyTorch says which.

A row is replaced by all of its parts or stays: a part without a rule would only move the gathering, and
an operator that is computed whole is quicker in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from ...base.log import logger
from ...ir.fx_convert import GETITEM, PLACEHOLDER, RowFacts, rows_of, target_of
from ...ir.graph import LogicalGraph, Meta, Ref, Row, map_refs, refs_of
from ...ir.prune import prune, with_rows
from ...rules.rules import integer
from ...rules.unknown_operators import Treatment, treatment
from ..capture import trace_decomposed
from .bags import BAGS, is_regular_bag
from .own_decompositions import MASKED_PUTS, OWN, has_class_weights, is_masked_put
from .written_out import Decompositions

VIEWS = ("aten.view.default", "aten._unsafe_view.default")
RESHAPE = "aten.reshape.default"
"""In place of a view: in memory, an operand may lie otherwise than the new tensor that was traced."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a row is made of. rows: operands first, as placeholders. results: its outputs, by row."""

    operands: int
    rows: tuple[Row, ...]
    results: tuple[int | None, ...]


def decompose(graph: LogicalGraph) -> LogicalGraph:
    """The graph in which every operator that only parts of it have rules for is written out as these."""
    book = PartsBook()
    found = {row.id: parts for row in graph.rows if (parts := book.parts(row, graph.rows)) is not None}
    if not found:
        return graph
    writing = Writing(found)
    for row in graph.rows:
        writing.add(row)
    return prune(with_rows(graph, writing.rows, lambda old: writing.new[old].id))


@dataclass(slots=True)
class PartsBook:
    """Parts by operator, literals, and types of operands: rows that agree in these are traced once."""

    known: dict[object, Parts | None] = field(default_factory=dict)

    def parts(self, row: Row, rows: Sequence[Row]) -> Parts | None:
        """The parts of one row of `rows`, if there are any and all of them have rules."""
        masked, bagged = is_masked_put(row, rows), is_regular_bag(row, rows)
        if not masked and not has_class_weights(row) and treatment(row) is not Treatment.WHOLE:
            return None
        if not row.op.startswith("aten."):
            return None
        refs = list(dict.fromkeys(refs_of((row.args, row.kwargs))))
        metas = tuple(meta for ref in refs if (meta := meta_of(rows[ref.id])) is not None)
        if len(metas) < len(refs):
            return None
        places = {ref: Ref(place) for place, ref in enumerate(refs)}
        args, kwargs = changed(row, places.__getitem__)
        key = (row.op, repr(args), repr(kwargs), metas, bagged)
        if key not in self.known:
            own = {**OWN, **(MASKED_PUTS if masked else {}), **(BAGS if bagged else {})}
            self.known[key] = _traced(row.op, args, kwargs, metas, own)
        return self.known[key]


def changed(row: Row, change: Callable[[Ref], object]) -> tuple[tuple[object, ...], dict[str, object]]:
    """Arguments of a row with something else in place of its operands."""
    named = {key: map_refs(value, change) for key, value in row.kwargs.items()}
    return tuple(map_refs(value, change) for value in row.args), named


def meta_of(row: Row) -> Meta | None:
    return None if row.shape is None or row.dtype is None else (row.shape, row.dtype)


def _traced(
    op: str, args: Sequence[object], kwargs: Mapping[str, object], metas: Sequence[Meta], own: Decompositions
) -> Parts | None:
    """The parts, or None where PyTorch knows none, or one of them has no rule either."""
    call = call_of(target_of(op), args, kwargs)
    try:
        graph = trace_decomposed(call, metas, own, lambda other: str(other) != op and has_rule(str(other)))
    except Exception as error:  # whatever PyTorch's own code may raise
        logger.debug("%s is not decomposed: %s: %s", op, type(error).__name__, error)
        return None
    return _parts(graph, len(metas))


def call_of(
    target: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> Callable[..., tuple[object, ...]]:
    """A call as a function of its operands, with all of its results."""

    def call(*operands: torch.Tensor) -> tuple[object, ...]:
        given = (map_refs(item, lambda ref: operands[ref.id]) for item in args)
        named = {key: map_refs(item, lambda ref: operands[ref.id]) for key, item in kwargs.items()}
        result = target(*given, **named)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    return call


def _parts(graph: fx.Graph, operands: int) -> Parts | None:
    nodes = list(graph.nodes)
    if any(node.op not in ("placeholder", "call_function", "output") for node in nodes):
        return None
    rows, ids = rows_of(nodes, lambda node: RowFacts())
    made = tuple(replace(row, op=RESHAPE) if row.op in VIEWS else row for row in rows)
    outputs = graph.output_node().args[0]
    results = tuple(ids[node] if isinstance(node, fx.Node) else None for node in outputs)  # type: ignore[union-attr]
    return Parts(operands, made, results) if all(map(_splits, made)) else None


def _splits(row: Row) -> bool:
    if row.op in (PLACEHOLDER, GETITEM):
        return True
    return (row.shape is not None or row.outs is not None) and treatment(row) in (None, Treatment.POINTWISE)


def has_rule(op: str) -> bool:
    """Whether an operator with one result splits by a rule of its own, or as all pointwise ones do."""
    return treatment(Row(0, op, (), {}, (), None)) in (None, Treatment.POINTWISE)


@dataclass(slots=True)
class Writing:
    """The rows of the new graph so far. new: by old row, the row that is it now."""

    found: Mapping[int, Parts]
    rows: list[Row] = field(default_factory=list)
    new: dict[int, Ref] = field(default_factory=dict)
    outputs: dict[int, tuple[Ref | None, ...]] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """A row, or its parts in its place."""
        parts = self.found.get(row.id)
        if parts is not None:
            results = self._write(row, parts)
            if row.outs is None and results[0] is not None:
                self.new[row.id] = results[0]
            self.outputs[row.id] = results
            return
        source = row.args[0] if row.op == GETITEM else None
        if isinstance(source, Ref) and source.id in self.outputs:
            picked = self.outputs[source.id][integer(row.args[1])]
            if picked is not None:
                self.new[row.id] = picked
            return
        self.new[row.id] = self._put(row, row, lambda ref: self.new[ref.id])

    def _write(self, row: Row, parts: Parts) -> tuple[Ref | None, ...]:
        refs = [self.new[ref.id] for ref in dict.fromkeys(refs_of((row.args, row.kwargs)))]
        for part in parts.rows[parts.operands :]:
            refs.append(self._put(part, row, lambda ref: refs[ref.id]))
        return tuple(None if result is None else refs[result] for result in parts.results)

    def _put(self, row: Row, whole: Row, change: Callable[[Ref], object]) -> Ref:
        """A row at the end, in the place that `whole` has in the model."""
        args, kwargs = changed(row, change)
        self.rows.append(
            replace(
                row,
                id=len(self.rows),
                args=args,
                kwargs=kwargs,
                layer=whole.layer,
                module=whole.module,
                phase=whole.phase,
                origin=whole.origin,
                where=whole.where,
            )
        )
        return Ref(len(self.rows) - 1)
