"""What each kind of row does, and what of the backward pass belongs to a forward row.

Backward rows carry no link to the forward row that they differentiate; those of one line and module share
theirs out: products to products by flops, others to the row whose name they carry, else by bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from ...cost_models.operator_classes import SOFTMAX_FLOPS, OperatorClass, Work, class_of, is_heavy, short_name
from ...errors import HspmdError
from ...ir.graph import Phase, Row
from ...rules.op_rule import OP_RULES
from .cuts import CutBook
from .movable import is_view
from .row_ways import value_bytes

SAME_MEMORY = frozenset({"aten._unsafe_view.default", "aten.reshape.default"})
Backward = tuple[tuple[int, float], ...]
"""(number of a row's kind, how many of its calls) of what belongs to a forward row."""

NOTHING_BACKWARD: Backward = ()


@dataclass(slots=True)
class WorkBook:
    """What each kind of row does, whole, and which backward rows belong to a forward one."""

    book: CutBook
    works: dict[int, Work] = field(default_factory=dict)
    backward: dict[int, Backward] = field(default_factory=dict)

    @classmethod
    def of(cls, book: CutBook) -> WorkBook:
        """Looks at every row once."""
        found = cls(book)
        for row in book.graph.rows:
            if row.op not in ("placeholder", "output"):
                found.work(row)
        found._share_out()
        return found

    def work(self, row: Row) -> Work:
        """Of a row computed whole."""
        number = self.book.alike[row.id]
        known = self.works.get(number)
        if known is None:
            known = self.works[number] = self._work(row)
        return known

    def _work(self, row: Row) -> Work:
        kind = _class(row)
        rows = self.book.graph.rows
        read = [rows[i] for i in dict.fromkeys(self.book.facts.operands[row.id])]
        made = value_bytes(row)
        size = made + sum(map(value_bytes, read))
        if kind is OperatorClass.INDEX and read:
            size = min(size, 2 * made + sum(map(value_bytes, read[1:])))
        dtype = str(row.dtype or next((m[1] for m in row.outs or () if m), "float32")).removeprefix("torch.")
        flops = (
            0.0 if kind in (OperatorClass.VIEW, OperatorClass.COPY, OperatorClass.INDEX) else self._flops(row)
        )
        if kind is OperatorClass.VIEW:
            size = 0
        return Work(kind, dtype, flops, float(size), 0.0, short_name(row.op))

    def _flops(self, row: Row) -> float:
        if row.op in OP_RULES:
            try:
                call = self.book.facts.calls.of(row)
            except HspmdError:
                return float(prod(row.shape or ()))
            scores = call.rule.heads and prod([call.sizes[one] for one in "bhst" if one in call.sizes])
            return call.flops() + (SOFTMAX_FLOPS * scores if scores else 0.0)
        return float(prod(row.shape or ()))

    def _share_out(self) -> None:
        places: dict[tuple[object, ...], tuple[list[Row], list[Row]]] = {}
        for row in self.book.graph.rows:
            if row.op not in ("placeholder", "output", "getitem"):
                for key in _places(row):
                    places.setdefault(key, ([], []))[row.phase is Phase.BACKWARD].append(row)
        found: dict[int, list[tuple[int, float]]] = {}
        for row in self.book.graph.rows:
            if row.phase is not Phase.BACKWARD or self._free(row):
                continue
            number = self.book.alike[row.id]
            for owner, part in self._owners(row, places):
                found.setdefault(owner, []).append((number, part))
        equal: dict[Backward, Backward] = {}
        made = {owner: tuple(parts) for owner, parts in found.items()}
        self.backward = {owner: equal.setdefault(parts, parts) for owner, parts in made.items()}

    def _free(self, row: Row) -> bool:
        return row.op in ("placeholder", "output") or self.work(row).of is OperatorClass.VIEW

    def _owners(
        self, row: Row, places: dict[tuple[object, ...], tuple[list[Row], list[Row]]]
    ) -> list[tuple[int, float]]:
        """Forward rows that a backward row belongs to, and how much of it to each."""
        for key in _places(row):
            near = [one for one in places[key][0] if not self._free(one)]
            alike = [one for one in near if is_heavy(self.work(one).of) == is_heavy(self.work(row).of)]
            named = [one for one in near if short_name(one.op).strip("_") in short_name(row.op)]
            for among in (alike if is_heavy(self.work(row).of) else named, alike, near):
                if among:
                    return self._parts(among)
        return []

    def _parts(self, rows: Sequence[Row]) -> list[tuple[int, float]]:
        heavy = all(is_heavy(self.work(row).of) for row in rows)
        sizes = [self.work(row).flops if heavy else self.work(row).bytes for row in rows]
        total = sum(sizes)
        return [
            (row.id, size / total if total else 1 / len(rows)) for row, size in zip(rows, sizes, strict=True)
        ]


def _places(row: Row) -> tuple[tuple[object, ...], ...]:
    """Where a row stands, from the most precise."""
    return (row.layer, row.module, row.where), (row.layer, row.module), (row.layer,), ()


def _class(row: Row) -> OperatorClass:
    if row.op in SAME_MEMORY or is_view(row.op):
        return OperatorClass.VIEW
    return class_of(row.op)
