"""Seconds that a way of computing a row takes on a machine: forward, and what of backward belongs to it.

A call costs what `DeviceRates` says of its flops and bytes. Backward rows carry no link to the forward row
that they differentiate; those of one line and module share theirs out: products to products by flops, others
to the row whose name they carry, else by bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import prod

from ..cost_models.compute import LAUNCH_S
from ..cost_models.operator_classes import SOFTMAX_FLOPS, OperatorClass, Work, class_of, is_heavy, short_name
from ..errors import HspmdError
from ..ir.graph import Phase, Row
from ..rules.op_rule import OP_RULES
from .cuts import CutBook
from .machine import Lane, SearchMachine
from .movable import is_view
from .row_ways import RowWay, value_bytes

SAME_MEMORY = frozenset({"aten._unsafe_view.default", "aten.reshape.default"})
INSIDE_REDUCES = 3
"""All-reduces of an operator that is cut by a pattern: two forward, one backward."""
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
        number = self.book.facts.signatures[row.id]
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
            number = self.book.facts.signatures[row.id]
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


@dataclass(slots=True)
class RowPrices:
    """Seconds of rows on one machine, in a step: all micro-batches."""

    works: WorkBook
    machine: SearchMachine
    _known: dict[Hashable, float] = field(default_factory=dict)

    def seconds(self, row: Row, way: RowWay, vertex: int = 0) -> float:
        """Of the slowest rank."""
        key = (self.works.book.facts.signatures[row.id], id(self.backward(row)), id(way), vertex)
        found = self._known.get(key)
        if found is None:
            longest = max(self._on(lane, row, way, vertex) for lane in self.machine.lanes)
            found = self._known[key] = longest + self._inside(way)
        return found

    def backward(self, row: Row) -> Backward:
        """What of the backward pass belongs to a row."""
        return self.works.backward.get(row.id, NOTHING_BACKWARD)

    def forward_seconds(self, row: Row, way: RowWay, vertex: int = 0) -> float:
        """Of the forward half alone, as it is computed again."""
        key = (self.works.book.facts.signatures[row.id], id(way), vertex)
        found = self._known.get(key)
        if found is None:
            longest = max(self._forward(lane, row, way, vertex) for lane in self.machine.lanes)
            found = self._known[key] = longest
        return found

    def _inside(self, way: RowWay) -> float:
        if not way.inside:
            return 0.0
        price = self.machine.reduces.seconds(way.inside * self.machine.batch)
        return INSIDE_REDUCES * self.machine.micro_batches * price

    def _forward(self, lane: Lane, row: Row, way: RowWay, vertex: int) -> float:
        share = lane.shares[vertex] if way.shared else 1.0
        work = self.works.work(row)
        size = self._bytes(lane, row, way, vertex)
        return self.machine.micro_batches * self._call(lane, work, share * self._batch(lane, row), size)

    def _on(self, lane: Lane, row: Row, way: RowWay, vertex: int) -> float:
        share = lane.shares[vertex] if way.shared else 1.0
        batch = self._batch(lane, row)
        total = sum(way.moved) or 1
        part = self._bytes(lane, row, way, vertex) / total
        found = self._forward(lane, row, way, vertex)
        for number, count in self.backward(row):
            work = self.works.works[number]
            again = self._call(lane, work, share * batch, work.bytes * part)
            found += self.machine.micro_batches * count * again
        return found

    def _bytes(self, lane: Lane, row: Row, way: RowWay, vertex: int) -> float:
        whole = sum(way.moved) or 1
        share = lane.shares[vertex] if way.shared else 1.0
        return self.works.work(row).bytes * way.moved.bytes(share, self._batch(lane, row)) / whole

    def _batch(self, lane: Lane, row: Row) -> float:
        static = self.works.book.facts.kinds.static[row.id]
        return 1.0 if static else lane.batch / self.machine.micro_batches

    def _call(self, lane: Lane, work: Work, part: float, size: float) -> float:
        rates = lane.rates
        found = rates.call_s(Work(work.of, work.dtype, work.flops * part, size, 0.0, work.name))
        if rates.measured or work.of is OperatorClass.VIEW:
            return found
        return max(found, LAUNCH_S[rates.family])
