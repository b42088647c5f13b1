"""Segments run by shape: each is recorded once, then replayed for every rank like it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import VerifyError
from ...program.execute import RankPlan
from ...program.literals import resolve, segment_holes
from ...program.operator_types import OperatorBook, Typed
from ...program.program import COMM, COMM_START, LocalRow, Segment
from ...program.requests import SegmentRun
from .recording import BoundSegment, ReadSegment, Recording, record
from .shapes import MemoryBlock, Meter, ShapeValue

SegmentKey = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class OwnSegment:
    """A segment of one rank. literals, key: equal for ranks whose rows, or rows and answers, are equal."""

    bound: BoundSegment
    literals: SegmentKey
    key: SegmentKey


class ShapeBook:
    """All recordings of a run. operators: of other runs, too, whatever their programs."""

    def __init__(self, operators: OperatorBook | None = None) -> None:
        self.operators = operators or OperatorBook()
        self._recordings: dict[SegmentKey, Recording] = {}
        self._rows: dict[SegmentKey, ReadSegment] = {}
        self._read: dict[int, tuple[Segment, list[int], list[LocalRow]]] = {}

    @property
    def computed(self) -> int:
        """Segments walked so far."""
        return len(self._recordings)

    def bound(self, plan: RankPlan) -> list[OwnSegment]:
        """The segments of one rank with all that is its own."""
        return [self._bound(plan, segment) for segment in plan.shared.segments]

    def get(self, own: OwnSegment, inputs: Sequence[ShapeValue], owned: Sequence[bool]) -> Recording:
        """The recording for these inputs, made at first need."""
        types: tuple[Typed, ...] = tuple((value.shape, value.dtype, value.stride) for value in inputs)
        key = (own.key, types, tuple(owned))
        if key not in self._recordings:
            rows = self._rows_of(own)
            self._recordings[key] = record(own.bound, rows, types, owned, self.operators)
        return self._recordings[key]

    def _rows_of(self, own: OwnSegment) -> ReadSegment:
        if own.literals not in self._rows:
            self._rows[own.literals] = ReadSegment.of(own.bound, self.operators)
        return self._rows[own.literals]

    def _bound(self, plan: RankPlan, segment: Segment) -> OwnSegment:
        if id(segment) not in self._read:
            comms = [row for row in segment.rows if row.op in (COMM, COMM_START)]
            self._read[id(segment)] = (segment, segment_holes(segment), comms)
        _, holes, comms = self._read[id(segment)]
        literals = plan.program.literals
        slots = [_slot(row, literals) for row in comms]
        steps = [plan.program.comms[slot] for slot in slots]
        filled = (id(segment), tuple(repr(literals[index]) for index in holes))
        answers = tuple((step.kind, step.dst_shape, step.dtype) for step in steps)
        device = plan.program.device_family
        bound = BoundSegment(segment, literals, slots, steps, device)
        return OwnSegment(bound, filled, (filled, answers, device))


class ShapeSegments:
    """`Segments` of one rank by shape."""

    def __init__(self, plan: RankPlan, book: ShapeBook, meter: Meter) -> None:
        self._segments = book.bound(plan)
        self._book = book
        self._meter = meter

    def start(
        self, segment: int, mb: int, inputs: list[ShapeValue], owned: list[bool]
    ) -> SegmentRun[ShapeValue]:
        """See Segments."""
        return self._replay(self._book.get(self._segments[segment], inputs, owned), list(inputs))

    def _replay(self, recording: Recording, inputs: list[ShapeValue]) -> SegmentRun[ShapeValue]:
        self._meter.note(recording.extra)
        for call in recording.calls:
            operand = None if call.operand is None else self._made(call.operand)
            answer = yield (call.slot, operand, None if call.starts else False)
            if (answer.shape, answer.dtype) != call.answer[:2]:
                raise VerifyError(f"a {call.answer} is expected, {(answer.shape, answer.dtype)} arrives")
            del answer, operand
        blocks: dict[tuple[int, int], MemoryBlock] = {}
        for out in recording.outputs:
            if out.shared >= 0:
                blocks[out.shared, out.memory] = inputs[out.shared].block
        inputs.clear()
        for out in recording.outputs:
            if (out.shared, out.memory) not in blocks:
                blocks[out.shared, out.memory] = MemoryBlock(self._meter, out.size)
        return tuple(
            ShapeValue(out.typed[0], out.typed[1], blocks[out.shared, out.memory], out.typed[2])
            for out in recording.outputs
        )

    def _made(self, typed: Typed) -> ShapeValue:
        """An operand on its way: its memory is in the recording's `extra`."""
        return ShapeValue(typed[0], typed[1], MemoryBlock(self._meter, 0), typed[2])


def _slot(row: LocalRow, literals: Sequence[object]) -> int:
    slot = resolve(row.args[1], literals)
    assert isinstance(slot, int), "checked when the artifact was read"
    return slot
