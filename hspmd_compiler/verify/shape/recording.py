"""A segment by shape: what it asks of other ranks, what it gives, and the memory that it holds inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...base.comm_plan import CommKind, CommStep
from ...errors import VerifyError
from ...program.interpret import RowCall, read_rows, walk_rows
from ...program.lifetimes import unread_inputs
from ...program.literals import torch_dtype
from ...program.operator_types import Memory, OperatorBook, Sketch, SketchResult, Typed, span
from ...program.program import COMM, Segment
from ...program.quick.table import MadeTensor
from ...program.requests import SegmentRun
from .shapes import dense_stride


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One `comm` row: its slot, its operand's type and the answer's type. starts: of a `comm_start`."""

    slot: int
    operand: Typed | None
    answer: Typed
    starts: bool = False


@dataclass(slots=True)
class Recording:
    """A segment by shape. outputs: operands are its inputs.

    extra: most bytes held at once inside, less the inputs given up.
    """

    calls: list[RecordedCall] = field(default_factory=list)
    outputs: list[MadeTensor[Typed]] = field(default_factory=list)
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
class ReadSegment:
    """The rows of a segment with their literals. numbers: of operator and literals, by a row's result."""

    calls: Sequence[RowCall]
    numbers: Mapping[int, int]

    @classmethod
    def of(cls, bound: BoundSegment, book: OperatorBook) -> ReadSegment:
        """Read once for ranks whose literals are equal."""
        calls = read_rows(bound.segment, bound.literals)
        return cls(calls, {call.row.out.id: book.number(call) for call in calls if call.row.op != COMM})


def record(
    bound: BoundSegment,
    read: ReadSegment,
    inputs: Sequence[Typed],
    owned: Sequence[bool],
    book: OperatorBook,
) -> Recording:
    """Walk a segment once. owned: inputs whose memory is given up after their last use."""
    given = [Sketch(typed, Memory(span(typed))) for typed in inputs]
    tally = _Tally(bound.segment, given, owned)

    def compute(call: RowCall, values: Mapping[int, SketchResult]) -> SketchResult:
        return book.result(read.numbers[call.row.out.id], call, values, bound.device)

    walk: SegmentRun[SketchResult] = walk_rows(
        bound.segment, read.calls, given, compute, tally.seen, starts=True
    )
    recording = Recording()
    begun: dict[int, Sketch] = {}
    try:
        slot, operand, kind = next(walk)
        while True:
            moved = operand[0] if isinstance(operand, tuple) else operand  # counts have no numbers here
            if kind is None:
                answer = _start(bound, moved, recording)
                if answer is not None:
                    begun[slot] = answer
                    tally.begin(answer)
                assert moved is not None, "what starts moves one tensor"
                slot, operand, kind = walk.send(moved)
                continue
            answer = _call(bound, moved, recording, begun.get(slot))
            if slot in begun:
                tally.end(begun.pop(slot))
            slot, operand, kind = walk.send(answer)
    except StopIteration as end:
        recording.extra = tally.most
        recording.outputs = _outputs(end.value, given)
    return recording


def _start(bound: BoundSegment, operand: SketchResult | None, recording: Recording) -> Sketch | None:
    """What a collective that starts gives later: there is memory for it from now on."""
    number = len(recording.calls)
    assert isinstance(operand, Sketch), "what starts moves one tensor"
    call = RecordedCall(bound.slots[number], operand.typed, operand.typed, starts=True)
    recording.calls.append(call)
    step = bound.steps[number]
    return None if step.kind is CommKind.SEND_RECV else _answer(step, operand)


def _call(
    bound: BoundSegment, operand: SketchResult | None, recording: Recording, begun: Sketch | None = None
) -> Sketch:
    """Every communication answers with what its step says."""
    number = len(recording.calls)
    assert operand is None or isinstance(operand, Sketch), "a comm row moves one tensor"
    answer = _answer(bound.steps[number], operand) if begun is None else begun
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


def _outputs(made: Sequence[SketchResult], given: Sequence[Sketch]) -> list[MadeTensor[Typed]]:
    own = {id(sketch.memory): index for index, sketch in enumerate(given)}
    numbers: dict[int, int] = {}
    outputs = []
    for sketch in made:
        assert isinstance(sketch, Sketch), "an output is one tensor"
        number = numbers.setdefault(id(sketch.memory), len(numbers))
        shared = own.get(id(sketch.memory), -1)
        outputs.append(MadeTensor(sketch.typed, shared, number, sketch.memory.size))
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

    def begin(self, sketch: Sketch) -> None:
        """What is under way has memory already."""
        self._live += sketch.memory.size
        self.most = max(self.most, self._live)

    def end(self, sketch: Sketch) -> None:
        """It becomes a value."""
        self._live -= sketch.memory.size

    def seen(self, call: RowCall, result: SketchResult) -> None:
        """A row was computed; then values are given up."""
        self._hold(call.row.out.id, result)
        self.most = max(self.most, self._live)
        for value in call.dead:
            self._drop(value)

    def _hold(self, value: int, result: SketchResult) -> None:
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
