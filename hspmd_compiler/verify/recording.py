"""A segment by shape: what it asks of other ranks, what it gives, and the memory that it holds inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..artifact.kernels import COMM
from ..artifact.literals import resolve, torch_dtype
from ..artifact.liveness import dead_after, row_reads, unread_inputs
from ..artifact.program import LocalRow, Segment, Value
from ..comm_plan import CommKind, CommStep
from ..errors import VerifyError
from .operator_types import Memory, OperatorBook, Result, Sketch, Typed, span
from .shapes import dense_stride


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One `comm` row: its slot, its operand's type and the answer's type."""

    slot: int
    operand: Typed | None
    answer: Typed


@dataclass(frozen=True, slots=True)
class RecordedOutput:
    """One output. source: input whose memory it shares, -1 for none. memory: number of its new block."""

    typed: Typed
    source: int
    memory: int
    size: int


@dataclass(slots=True)
class Recording:
    """A segment by shape. extra: most bytes held at once inside, less the inputs given up."""

    calls: list[RecordedCall] = field(default_factory=list)
    outputs: list[RecordedOutput] = field(default_factory=list)
    extra: int = 0


@dataclass(frozen=True, slots=True)
class BoundSegment:
    """A segment with what a rank brings to it. steps: of its `comm` rows, in order. device: its kind."""

    segment: Segment
    literals: Sequence[object]
    slots: Sequence[int]
    steps: Sequence[CommStep]
    device: str


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A row, the values that it reads and those that die with it. number: of its operator and literals."""

    row: LocalRow
    reads: tuple[int, ...]
    dead: Sequence[int]
    number: int


def read_rows(segment: Segment, literals: Sequence[object], book: OperatorBook) -> list[ReadRow]:
    """The rows of a segment for these literals."""
    return [
        ReadRow(
            row,
            tuple(dict.fromkeys(row_reads(row))),
            dead,
            -1 if row.op == COMM else book.number(row, literals),
        )
        for row, dead in zip(segment.rows, dead_after(segment), strict=True)
    ]


def record(
    bound: BoundSegment,
    rows: Sequence[ReadRow],
    inputs: Sequence[Typed],
    owned: Sequence[bool],
    book: OperatorBook,
) -> Recording:
    """Walk a segment once. owned: inputs whose memory is given up after their last use."""
    given = [Sketch(typed, Memory(span(typed))) for typed in inputs]
    values: dict[int, Result] = {
        item.value.id: sketch for item, sketch in zip(bound.segment.inputs, given, strict=True)
    }
    tally = _Tally(bound.segment, given, owned)
    for value in unread_inputs(bound.segment):
        del values[value]
    recording = Recording()
    for item in rows:
        if item.row.op == COMM:
            made: Result = _call(bound, item.row, values, recording)
        else:
            operands = {value: values[value] for value in item.reads}
            made = book.result(item.number, item.row, bound.literals, operands, bound.device)
        values[item.row.out.id] = made
        tally.seen(item.row, made, item.dead)
        for value in item.dead:
            del values[value]
    recording.extra = tally.most
    recording.outputs = _outputs(bound.segment, values, given)
    return recording


def _call(bound: BoundSegment, row: LocalRow, values: dict[int, Result], recording: Recording) -> Sketch:
    """Every communication answers with what its step says."""
    number = len(recording.calls)
    source = resolve(row.args[0], bound.literals)
    operand = values[source.id] if isinstance(source, Value) else None
    assert operand is None or isinstance(operand, Sketch), "a comm row moves one tensor"
    answer = _answer(bound.steps[number], operand)
    recording.calls.append(
        RecordedCall(bound.slots[number], None if operand is None else operand.typed, answer.typed)
    )
    return answer


def _answer(step: CommStep, operand: Sketch | None) -> Sketch:
    if step.kind is CommKind.ALL_REDUCE and operand is not None:
        shape, dtype, _ = operand.typed
    elif step.dst_shape is None:
        raise VerifyError(f"step {step.id} makes no value, but a row needs it")
    else:
        shape, dtype = step.dst_shape, torch_dtype(step.dtype)
    typed = (tuple(shape), dtype, dense_stride(shape))
    return Sketch(typed, Memory(span(typed)))


def _outputs(segment: Segment, values: dict[int, Result], given: Sequence[Sketch]) -> list[RecordedOutput]:
    own = {id(sketch.memory): index for index, sketch in enumerate(given)}
    numbers: dict[int, int] = {}
    outputs = []
    for output in segment.outputs:
        made = values[output.value.id]
        assert isinstance(made, Sketch), "an output is one tensor"
        number = numbers.setdefault(id(made.memory), len(numbers))
        outputs.append(RecordedOutput(made.typed, own.get(id(made.memory), -1), number, made.memory.size))
    return outputs


class _Tally:
    """Counts the memory that lives inside a segment, row by row."""

    def __init__(self, segment: Segment, given: Sequence[Sketch], owned: Sequence[bool]) -> None:
        self.most = 0
        self._live = 0
        self._users: dict[Memory, int] = {}
        self._held: dict[int, list[Memory]] = {}
        self._outside = {sketch.memory for sketch, mine in zip(given, owned, strict=True) if not mine}
        for item, sketch in zip(segment.inputs, given, strict=True):
            self._hold(item.value.id, sketch)
        self._live = 0
        for value in unread_inputs(segment):
            self._drop(value)

    def seen(self, row: LocalRow, result: Result, dead: Sequence[int]) -> None:
        """A row was computed; then `dead` values are given up."""
        self._hold(row.out.id, result)
        self.most = max(self.most, self._live)
        for value in dead:
            self._drop(value)

    def _hold(self, value: int, result: Result) -> None:
        sketches = result if isinstance(result, tuple) else (result,)
        mine = dict.fromkeys(item.memory for item in sketches if item is not None)
        self._held[value] = [memory for memory in mine if memory not in self._outside]
        for memory in self._held[value]:
            if not self._users.get(memory):
                self._live += memory.size
            self._users[memory] = self._users.get(memory, 0) + 1

    def _drop(self, value: int) -> None:
        for memory in self._held.pop(value, ()):
            self._users[memory] -= 1
            if not self._users[memory]:
                del self._users[memory]
                self._live -= memory.size
