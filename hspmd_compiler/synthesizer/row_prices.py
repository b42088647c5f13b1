"""Seconds that a way of computing a row takes on a machine, forward and backward, as `DeviceRates` says."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from ..cost_models.compute import LAUNCH_S
from ..cost_models.operator_classes import OperatorClass, Work
from ..ir.graph import Row
from .machine import Lane, SearchMachine
from .space.cuts import is_identity
from .space.row_ways import RowWay
from .space.works import NOTHING_BACKWARD, Backward, WorkBook

NONE: frozenset[int] = frozenset()
INSIDE_REDUCES = 3
"""All-reduces of an operator that is cut by a pattern: two forward, one backward."""


@dataclass(slots=True)
class RowPrices:
    """Seconds of rows on one machine, in a step: all micro-batches."""

    works: WorkBook
    machine: SearchMachine
    _known: dict[Hashable, float] = field(default_factory=dict)

    def seconds(self, row: Row, way: RowWay, vertex: int = 0, whole: frozenset[int] = NONE) -> float:
        """Of the slowest rank; an anchor is no work. whole: kinds of backward rows that each rank computes
        for the samples of its group."""
        if is_identity(row.op):
            return 0.0
        key = (*self._alike(row), id(self.backward(row)), id(way), vertex, whole)
        found = self._known.get(key)
        if found is None:
            longest = max(self._on(lane, row, way, share, whole) for lane, share in self._lanes(way, vertex))
            found = self._known[key] = longest + self._inside(way)
        return found

    def backward(self, row: Row) -> Backward:
        """What of the backward pass belongs to a row."""
        return self.works.backward.get(row.id, NOTHING_BACKWARD)

    def forward_seconds(self, row: Row, way: RowWay, vertex: int = 0) -> float:
        """Of the forward half alone, as it is computed again."""
        if is_identity(row.op):
            return 0.0
        key = (*self._alike(row), id(way), vertex)
        found = self._known.get(key)
        if found is None:
            found = max(self._forward(lane, row, way, share) for lane, share in self._lanes(way, vertex))
            self._known[key] = found
        return found

    def backward_seconds(self, row: Row, way: RowWay, vertex: int = 0, whole: frozenset[int] = NONE) -> float:
        """What a row takes beyond its forward half."""
        return self.seconds(row, way, vertex, whole) - self.forward_seconds(row, way, vertex)

    def _alike(self, row: Row) -> tuple[int, bool]:
        return self.works.book.alike[row.id], self.is_static(row)

    def is_static(self, row: Row) -> bool:
        """Whether it is made of parameters alone, of which samples do not count."""
        return self.works.book.facts.kinds.static[row.id]

    def _inside(self, way: RowWay) -> float:
        if not way.inside:
            return 0.0
        price = self.machine.reduces.seconds(way.inside * self.machine.batch)
        return INSIDE_REDUCES * self.machine.micro_batches * price

    def _lanes(self, way: RowWay, vertex: int) -> Iterator[tuple[Lane, float]]:
        """Each with its share of the work of a group."""
        lanes = self.machine.lanes
        shares = self.machine.shares(vertex, way.units) if way.shared else (1.0,) * len(lanes)
        return zip(lanes, shares, strict=True)

    def _forward(self, lane: Lane, row: Row, way: RowWay, share: float) -> float:
        work = self.works.work(row)
        size = self._bytes(lane, row, way, share)
        return self.machine.micro_batches * self._call(lane, work, share * self._batch(lane, row), size)

    def gathered_s(self, way: RowWay, vertex: int) -> float:
        """What it takes to gather the factors of a weight's gradient."""
        machine = self.machine
        gather = machine.gather(vertex, way.units)
        parts = [gather.seconds(size * machine.batch) for size in way.factors]
        return machine.micro_batches * sum(parts)

    def _on(self, lane: Lane, row: Row, way: RowWay, share: float, whole: frozenset[int]) -> float:
        batch = self._batch(lane, row)
        total = sum(way.moved) or 1
        part = self._bytes(lane, row, way, share) / total
        found = self._forward(lane, row, way, share)
        for number, count in self.backward(row):
            work = self.works.works[number]
            if number in whole:
                again = self._call(lane, work, batch, work.bytes * way.moved.bytes(1.0, batch) / total)
            else:
                again = self._call(lane, work, share * batch, work.bytes * part)
            found += self.machine.micro_batches * count * again
        return found

    def _bytes(self, lane: Lane, row: Row, way: RowWay, share: float) -> float:
        whole = sum(way.moved) or 1
        return self.works.work(row).bytes * way.moved.bytes(share, self._batch(lane, row)) / whole

    def _batch(self, lane: Lane, row: Row) -> float:
        return 1.0 if self.is_static(row) else lane.batch / self.machine.micro_batches

    def _call(self, lane: Lane, work: Work, part: float, size: float) -> float:
        rates = lane.rates
        found = rates.call_s(Work(work.of, work.dtype, work.flops * part, size, 0.0, work.name))
        if rates.measured or work.of is OperatorClass.VIEW:
            return found
        return max(found, LAUNCH_S[rates.family])
