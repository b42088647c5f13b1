"""Random operators of a traced step become draws by position, the same on one device and on many.

Dropout in all its forms is traced as `native_dropout` (also inside attention, which torch writes out
where it drops) or as `bernoulli` with one probability, and becomes a mask; other operators were written
out before as `BASIC` ones. Each is given a number, in the order of the forward pass, which is the order in
which eager draws.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ...ir.graph import LogicalGraph, Origin, OriginKind, Phase, Ref, Row, map_refs
from ...ir.own_names import MASKED, RANDOM_MASK, RANDOM_NUMBERS
from ...ir.prune import PLACEHOLDER, prune, with_rows
from ...program.kernels.counter_numbers import EXPONENTIAL, INTEGER, NORMAL, UNIFORM
from ...program.program import KEY_SIZE
from .random_parts import BY_NAME

NATIVE_DROPOUT = "aten.native_dropout.default"
BERNOULLI = "aten.bernoulli.p"

BASIC = {
    "aten.rand.default": UNIFORM,
    "aten.randn.default": NORMAL,
    "aten.exponential.default": EXPONENTIAL,
    "aten.random.default": INTEGER,
}
"""Operators that all others are written out as, and the kind of what they draw."""


def is_drawn_by_position(row: Row) -> bool:
    """Whether the row draws random numbers that can be made by position."""
    if row.phase is not Phase.FORWARD:
        return False
    if row.op == NATIVE_DROPOUT:
        return row.args[2:3] in ((True,), (None,))
    if row.kwargs.get("generator") is not None or (row.dtype is not None and row.dtype.is_complex):
        return False
    return row.op == BERNOULLI or row.op in BY_NAME


def is_basic(row: Row) -> bool:
    """Whether the row is one draw of a kind, and nothing more."""
    if len(row.args) > 1 or row.op not in BASIC or "lambd" in row.kwargs:
        return False
    return BASIC[row.op] != INTEGER or row.dtype is torch.int64


def masks_by_position(graph: LogicalGraph) -> LogicalGraph:
    """The graph with rows of ours in place of random operators, and the key that they read."""
    drawn = [row for row in graph.rows if is_drawn_by_position(row)]
    if not drawn:
        return graph
    first = next(row.id for row in graph.rows if row.op != PLACEHOLDER)
    key = Row(first, PLACEHOLDER, (), {}, (KEY_SIZE,), torch.int64, origin=Origin(OriginKind.RANDOM))
    rewriting = _Rewriting(first, {row.id: number for number, row in enumerate(_numbered(drawn))})
    rows = [*rewriting.rows(graph.rows[:first]), key, *rewriting.rows(graph.rows[first:])]
    return prune(with_rows(graph, rows, rewriting.new_id))


def _numbered(drawn: list[Row]) -> list[Row]:
    """Those for which eager draws numbers: dropping everything needs none."""
    return [row for row in drawn if not (row.op == NATIVE_DROPOUT and row.args[1] == 1)]


class _Rewriting:
    """Rows after `key` move by one place. numbers: of the operators, by the row that drew."""

    def __init__(self, key: int, numbers: dict[int, int]) -> None:
        self.key, self.numbers = key, numbers
        self._masks: dict[int, Row] = {}  # by the row of the dropout
        self._same: dict[int, int] = {}  # rows that became another one, by their old ids

    def new_id(self, old: int) -> int:
        """The place of a row among the new ones."""
        old = self._same.get(old, old)
        return old + (old >= self.key)

    def rows(self, rows: list[Row]) -> list[Row]:
        """The rows in their new form."""
        return [self._row(row) for row in rows]

    def _row(self, row: Row) -> Row:
        if is_drawn_by_position(row):
            self._masks[row.id] = row
            return self._mask(row)
        source = row.args[0] if row.op == "getitem" else None
        dropout = self._masks.get(source.id) if isinstance(source, Ref) else None
        if dropout is not None and row.args[1] == 0:
            return self._dropped(row, dropout)
        if dropout is not None:
            self._same[row.id] = dropout.id
        return self._placed(row)

    def _mask(self, row: Row) -> Row:
        shape, dtype = (row.shape, row.dtype) if row.outs is None else _meta(row)
        if row.op in BASIC:
            drawn = (Ref(self.key), self.numbers[row.id], BASIC[row.op], shape, dtype)
            return self._replaced(row, RANDOM_NUMBERS, drawn, {}, shape, dtype)
        if row.id not in self.numbers:
            return self._replaced(row, "aten.full.default", (shape, False), {"dtype": dtype}, shape, dtype)
        keep = row.args[1] if row.op == BERNOULLI else 1 - row.args[1]  # type: ignore[operator]
        args = (Ref(self.key), self.numbers[row.id], float(keep), shape, dtype)  # type: ignore[arg-type]
        return self._replaced(row, RANDOM_MASK, args, {}, shape, dtype)

    def _dropped(self, row: Row, dropout: Row) -> Row:
        probability = dropout.args[1]
        assert isinstance(probability, (int, float)), "a schema says so"
        scale = 0.0 if probability == 1 else 1 / (1 - probability)
        args = (self._moved(dropout.args[0]), Ref(self.new_id(dropout.id)), scale)
        return self._replaced(row, MASKED, args, {}, row.shape, row.dtype)

    def _placed(self, row: Row) -> Row:
        args = tuple(self._moved(argument) for argument in row.args)
        kwargs = {name: self._moved(value) for name, value in row.kwargs.items()}
        return replace(row, id=row.id + (row.id >= self.key), args=args, kwargs=kwargs)

    def _replaced(
        self,
        row: Row,
        op: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        shape: tuple[int, ...] | None,
        dtype: torch.dtype | None,
    ) -> Row:
        new = self.new_id(row.id)
        return replace(row, id=new, op=op, args=args, kwargs=kwargs, shape=shape, dtype=dtype, outs=None)

    def _moved(self, value: object) -> object:
        return map_refs(value, lambda ref: Ref(self.new_id(ref.id)))


def _meta(row: Row) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and type of the mask among the results of a dropout."""
    assert row.outs is not None and row.outs[1] is not None, "dropout gives its mask"
    return row.outs[1]
