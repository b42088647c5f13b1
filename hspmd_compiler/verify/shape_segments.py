"""Segments run by shape: each is computed once on meta tensors, then replayed for every rank like it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..artifact.execute import RankPlan
from ..artifact.interpret import interpret_segment
from ..artifact.kernels import COMM
from ..artifact.literals import resolve, segment_holes
from ..artifact.liveness import unread_inputs
from ..artifact.program import LocalRow, Segment
from ..artifact.requests import CommCall, SegmentRun
from ..comm_plan import CommKind, CommStep
from ..errors import VerifyError
from .shapes import Block, Meter, ShapeValue

Typed = tuple[tuple[int, ...], torch.dtype, tuple[int, ...]]
"""(shape, element type, strides)."""

META = "meta"


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
    """A segment of one rank. key: equal for ranks whose rows compute the same."""

    segment: Segment
    literals: Sequence[object]
    slots: Sequence[int]
    steps: Sequence[CommStep]
    key: tuple[object, ...]


class ShapeBook:
    """All recordings of a run. computed: how many segments were really computed."""

    def __init__(self) -> None:
        self._recordings: dict[tuple[object, ...], Recording] = {}
        self._read: dict[int, tuple[list[int], list[LocalRow]]] = {}

    @property
    def computed(self) -> int:
        """Segments computed on meta tensors so far."""
        return len(self._recordings)

    def bound(self, plan: RankPlan) -> list[BoundSegment]:
        """The segments of one rank with all that is its own."""
        return [self._bound(plan, segment) for segment in plan.shared.segments]

    def get(self, bound: BoundSegment, inputs: Sequence[ShapeValue], owned: Sequence[bool]) -> Recording:
        """The recording for these inputs, made at first need."""
        key = (bound.key, tuple(typed_of(value) for value in inputs), tuple(owned))
        if key not in self._recordings:
            self._recordings[key] = _record(bound, inputs, owned)
        return self._recordings[key]

    def _bound(self, plan: RankPlan, segment: Segment) -> BoundSegment:
        if id(segment) not in self._read:
            comms = [row for row in segment.rows if row.op == COMM]
            self._read[id(segment)] = (segment_holes(segment), comms)
        holes, comms = self._read[id(segment)]
        literals = plan.program.literals
        slots = [_slot(row, literals) for row in comms]
        steps = [plan.program.comms[slot] for slot in slots]
        key = (
            id(segment),
            tuple(repr(literals[index]) for index in holes),
            tuple((step.kind, step.dst_shape, step.dtype) for step in steps),
        )
        return BoundSegment(segment, literals, slots, steps, key)


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
            answer = yield (call.slot, operand, False)
            if (tuple(answer.shape), answer.dtype) != call.answer[:2]:
                raise VerifyError(f"a {call.answer} is expected, {typed_of(answer)} arrives")
            del answer, operand
        kept = [None if out.source < 0 else inputs[out.source].block for out in recording.outputs]
        inputs.clear()
        made: dict[int, Block] = {}
        return tuple(
            ShapeValue(out.typed[0], out.typed[1], self._block(block, made, out), out.typed[2])
            for out, block in zip(recording.outputs, kept, strict=True)
        )

    def _block(self, shared: Block | None, made: dict[int, Block], out: RecordedOutput) -> Block:
        if shared is not None:
            return shared
        if out.memory not in made:
            made[out.memory] = Block(self._meter, out.size)
        return made[out.memory]

    def _made(self, typed: Typed) -> ShapeValue:
        """An operand on its way: its memory is in the recording's `extra`."""
        return ShapeValue(typed[0], typed[1], Block(self._meter, 0), typed[2])


def typed_of(value: ShapeValue | Tensor) -> Typed:
    """Shape, element type and strides."""
    stride = value.stride() if isinstance(value, Tensor) else value.stride
    return tuple(value.shape), value.dtype, tuple(stride)


def _slot(row: LocalRow, literals: Sequence[object]) -> int:
    slot = resolve(row.args[1], literals)
    assert isinstance(slot, int), "checked when the artifact was read"
    return slot


def _record(bound: BoundSegment, inputs: Sequence[ShapeValue], owned: Sequence[bool]) -> Recording:
    metas = [
        torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=META) for value in inputs
    ]
    tally = _Tally(bound.segment, metas, owned)
    recording = Recording()
    run = interpret_segment(bound.segment, bound.literals, list(metas), META, tally.seen)
    outputs = _answer_all(run, bound, recording)
    recording.extra = tally.most
    own = {storage_of(meta): index for index, meta in enumerate(metas)}
    memory: dict[int, int] = {}
    for output in outputs:
        storage = storage_of(output)
        number = memory.setdefault(storage, len(memory))
        size = output.untyped_storage().nbytes()
        recording.outputs.append(RecordedOutput(typed_of(output), own.get(storage, -1), number, size))
    return recording


def _answer_all(
    run: Generator[CommCall[Tensor], Tensor, tuple[Tensor, ...]],
    bound: BoundSegment,
    recording: Recording,
) -> tuple[Tensor, ...]:
    """Drive one segment alone: every communication answers with what its step says."""
    answer: Tensor | None = None
    for step, slot in zip(bound.steps, bound.slots, strict=True):
        _, operand, _ = next(run) if answer is None else run.send(answer)
        answer = _answer(step, operand)
        taken = None if operand is None else typed_of(operand)
        recording.calls.append(RecordedCall(slot, taken, typed_of(answer)))
        del operand
    try:
        if answer is None:
            next(run)
        else:
            run.send(answer)
    except StopIteration as end:
        outputs: tuple[Tensor, ...] = end.value
        return outputs
    raise AssertionError("a segment yields once for each comm row")


def _answer(step: CommStep, operand: Tensor | None) -> Tensor:
    if step.kind is CommKind.ALL_REDUCE and operand is not None:
        return torch.empty(operand.shape, dtype=operand.dtype, device=META)
    if step.dst_shape is None:
        raise VerifyError(f"step {step.id} makes no value, but a row needs it")
    return torch.empty(step.dst_shape, dtype=getattr(torch, step.dtype), device=META)


class _Tally:
    """Counts the memory that lives inside a segment, row by row."""

    def __init__(self, segment: Segment, metas: Sequence[Tensor], owned: Sequence[bool]) -> None:
        self.most = 0
        self._live = 0
        self._users: dict[int, int] = {}
        self._storages: dict[int, list[tuple[int, int]]] = {}
        self._outside = {storage_of(meta) for meta, mine in zip(metas, owned, strict=True) if not mine}
        for item, meta in zip(segment.inputs, metas, strict=True):
            self._hold(item.value.id, meta)
        self._live = 0
        for value in unread_inputs(segment):
            self._drop(value)

    def seen(self, row: LocalRow, result: Any, dead: Sequence[int]) -> None:
        """A row was computed; then `dead` values are given up."""
        self._hold(row.out.id, result)
        self.most = max(self.most, self._live)
        for value in dead:
            self._drop(value)

    def _hold(self, value: int, result: Any) -> None:
        tensors = [
            item for item in (result if isinstance(result, (tuple, list)) else (result,)) if item is not None
        ]
        mine = [(storage_of(item), item.untyped_storage().nbytes()) for item in tensors]
        mine = [pair for pair in dict.fromkeys(mine) if pair[0] not in self._outside]
        self._storages[value] = mine
        for storage, size in mine:
            if not self._users.get(storage):
                self._live += size
            self._users[storage] = self._users.get(storage, 0) + 1

    def _drop(self, value: int) -> None:
        for storage, size in self._storages.pop(value, ()):
            self._users[storage] -= 1
            if not self._users[storage]:
                del self._users[storage]
                self._live -= size


def storage_of(tensor: Tensor) -> int:
    """Identity of a tensor's memory."""
    return int(tensor.untyped_storage()._cdata)
