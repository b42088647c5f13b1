"""A segment walked once by types: its calls between its communication, and how its memory lives."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import TypeGuard, cast

from ...base.dtypes import ElementType
from ...errors import EstimateError
from ...program.interpret import RowCall, untyped_row
from ...program.program import COMM, COMM_START, Hole, LocalRow, Segment, Value
from ...program.quick.plain import Outline, PlainTyped
from ...program.quick.table import TypeAnswer, quick_answer
from ..operator_classes import Work, work_of

PlainResult = PlainTyped | tuple[PlainTyped | None, ...]


class TypeOf:
    """The type of a result, one object for equal ones. parts: of each tensor of it. size: bytes of each."""

    __slots__ = ("parts", "size", "typed")

    def __init__(self, typed: PlainResult) -> None:
        self.typed = typed
        parts: tuple[PlainTyped | None, ...] = (
            (typed,) if _is_single(typed) else cast("tuple[PlainTyped | None, ...]", typed)
        )
        self.parts = parts
        self.size = sum(Outline(*part).size_bytes for part in parts if part is not None)

    @property
    def is_single(self) -> bool:
        """Whether it is of one tensor, not of several results."""
        return len(self.parts) == 1 and self.parts[0] is self.typed


def _is_single(typed: PlainResult) -> TypeGuard[PlainTyped]:
    return len(typed) == 3 and isinstance(typed[1], ElementType)


@dataclass(frozen=True, slots=True)
class CallKind:
    """Calls of one operator with the same literals and operand types, under one number.

    sources: per tensor of the result, the operand tensor whose memory it shares, or -1 - n for its n-th
    new memory. sizes: of the new memories.
    """

    number: int
    result: TypeOf
    sources: tuple[int, ...]
    sizes: tuple[int, ...]
    work: Work


class CommPart(Enum):
    """What a row does of its communication."""

    ALL = "all"
    START = "start"
    END = "end"


@dataclass(frozen=True, slots=True)
class CommRow:
    """A `comm` row, or one that starts a gather. row: its index. slot: of its step. size: bytes of the
    operand, 0 without one."""

    row: int
    slot: int
    size: int
    part: CommPart = CommPart.ALL


@dataclass(slots=True)
class WalkedSegment:
    """rows: per row the number of its kind of call, -1 for `comm`. given: memory numbers of the inputs.

    sizes, made, last: of each memory its bytes, the row that makes it (-1: an input) and the last that
    reads it (`len(rows)`: it lives on). held: per row, bytes inside the call. outputs: type and memories.
    """

    rows: list[int] = field(default_factory=list)
    comms: list[CommRow] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)
    given: list[int] = field(default_factory=list)
    outputs: list[tuple[TypeOf, int]] = field(default_factory=list)

    def pieces(self) -> list[list[int]]:
        """The numbers of calls before, between and behind the communication."""
        bounds = [-1, *(comm.row for comm in self.comms), len(self.rows)]
        return [self.rows[low + 1 : high] for low, high in pairwise(bounds)]

    def extra(self, owned: Sequence[bool]) -> int:
        """Most bytes held at once inside, beyond those held before. owned: inputs that may be given up."""
        count = len(self.rows)
        change = [0] * (count + 2)
        mine = {memory for memory, is_owned in zip(self.given, owned, strict=True) if is_owned}
        for memory, size in enumerate(self.sizes):
            if self.made[memory] >= 0:
                change[self.made[memory]] += size
            elif memory not in mine:
                continue
            change[min(self.last[memory], count) + 1] -= size
        live = most = 0
        for row, difference in enumerate(change[: count + 1]):
            live += difference
            most = max(most, live + self.held.get(row, 0))
        return most


class TypeBook:
    """All kinds of calls, and types, of a program; each is computed once, without data."""

    def __init__(self) -> None:
        self.kinds: list[CallKind] = []
        self._types: dict[PlainResult, TypeOf] = {}
        self._kinds: dict[Hashable, CallKind] = {}

    def type_of(self, typed: PlainResult) -> TypeOf:
        """The one object of a type."""
        found = self._types.get(typed)
        if found is None:
            found = self._types[typed] = TypeOf(typed)
        return found

    def kind(
        self, key: Hashable, row: LocalRow, literals: Sequence[object], types: Mapping[int, TypeOf]
    ) -> CallKind:
        """What a row is a call of. key: all that decides it."""
        found = self._kinds.get(key)
        if found is None:
            found = self._kinds[key] = self._new(row, literals, types)
        return found

    def _new(self, row: LocalRow, literals: Sequence[object], types: Mapping[int, TypeOf]) -> CallKind:
        call = untyped_row(row, literals)
        answer = _answer(call, literals, {value: types[value] for value in call.reads})
        parts = tuple(None if made is None else made.typed for made in answer.made)
        first = parts[0]
        typed: PlainResult = first if answer.single and first is not None else parts
        sizes = {made.memory: made.size for made in answer.made if made is not None and made.shared < 0}
        places = {memory: place for place, memory in enumerate(sizes)}
        sources = tuple(
            -1 if made is None else made.shared if made.shared >= 0 else -1 - places[made.memory]
            for made in answer.made
        )
        given = [part for value in call.reads for part in types[value].parts if part is not None]
        work = work_of(call, given, parts, is_view=not sizes)
        kind = CallKind(len(self.kinds), self.type_of(typed), sources, tuple(sizes.values()), work)
        self.kinds.append(kind)
        return kind


def _answer(call: RowCall, literals: Sequence[object], types: Mapping[int, TypeOf]) -> TypeAnswer[PlainTyped]:
    """By rule if there is one, else by PyTorch."""
    operands = {value: (typed.parts, typed.is_single) for value, typed in types.items()}
    quick = quick_answer(call, operands)
    if quick is not None:
        return quick
    from ...program.quick.asked import asked_answer  # late, with torch

    return asked_answer(call.row, literals, {value: typed.typed for value, typed in types.items()})


def walk_segment(
    segment: Segment,
    literals: Sequence[object],
    inputs: Sequence[TypeOf],
    answers: Mapping[int, tuple[PlainTyped, int]],
    book: TypeBook,
    beside: Collection[int] = (),
) -> WalkedSegment:
    """Walk it once. answers: of each slot whose step says it, the type that it gives and bytes on the way.
    beside: slots whose steps are under way from their start, if they have one."""
    walk = _Walk(segment, literals, inputs, answers, book, beside)
    for row in segment.rows:
        walk.step(row)
    return walk.ended()


class _Walk:
    """Types and memories of the values so far. memories: of each tensor of a value."""

    def __init__(
        self,
        segment: Segment,
        literals: Sequence[object],
        inputs: Sequence[TypeOf],
        answers: Mapping[int, tuple[PlainTyped, int]],
        book: TypeBook,
        beside: Collection[int],
    ) -> None:
        self.segment, self.literals, self.answers, self.book = segment, literals, answers, book
        self.beside, self.begun = beside, dict[int, int]()
        self.walked = WalkedSegment()
        self.types: dict[int, TypeOf] = {}
        self.memories: dict[int, tuple[int, ...]] = {}

        for item, typed in zip(segment.inputs, inputs, strict=True):
            memory = self._memory(typed.size, -1)
            self.walked.given.append(memory)
            self.types[item.value.id] = typed
            self.memories[item.value.id] = (memory,)

    def _memory(self, size: int, row: int) -> int:
        walked = self.walked
        walked.sizes.append(size)
        walked.made.append(row)
        walked.last.append(row)
        return len(walked.sizes) - 1

    def step(self, row: LocalRow) -> None:
        """One row."""
        walked, place = self.walked, len(self.walked.rows)
        if row.op == COMM or (row.op == COMM_START and self._slot(row) in self.beside):
            self._comm(row, place)
            return
        types, memories = self.types, self.memories
        reads: list[int] = []
        key: list[object] = [row.op]
        for argument in row.args:
            if type(argument) is Value:
                number = argument.id
                reads.append(number)
                key.append(types[number])
            else:
                key.append(self._sign(argument, reads))
        if row.kwargs:
            key.extend((name, self._sign(item, reads)) for name, item in row.kwargs.items())
        if len(reads) > 1 and len(set(reads)) < len(reads):
            key.append(tuple(map(reads.index, reads)))
            reads = list(dict.fromkeys(reads))
        kind = self.book.kind(tuple(key), row, self.literals, types)
        walked.rows.append(kind.number)
        own = [memory for number in reads for memory in memories[number]] if reads else []
        for memory in own:
            walked.last[memory] = place
        out = row.out.id
        types[out] = kind.result
        if kind.sizes:
            new = [self._memory(size, place) for size in kind.sizes]
            memories[out] = tuple([new[-1 - s] if s < 0 else own[s] for s in kind.sources])
            if kind.work.workspace_bytes:
                walked.held[place] = int(kind.work.workspace_bytes)
        else:
            memories[out] = tuple([own[s] for s in kind.sources if s >= 0])

    def _sign(self, argument: object, reads: list[int]) -> Hashable:
        """An argument as part of a key: types for values, and literals, of which 1, 1.0 and True differ."""
        kind = type(argument)
        if kind is Value:
            reads.append(argument.id)  # type: ignore[attr-defined]
            return self.types[argument.id]  # type: ignore[attr-defined]
        if kind is tuple or kind is list:
            return tuple([self._sign(item, reads) for item in argument])  # type: ignore[attr-defined]
        if kind is Hole:
            return self._sign(self.literals[argument.index], reads)  # type: ignore[attr-defined]
        return argument if kind is int or kind is str or argument is None else (kind, argument)

    def _comm(self, row: LocalRow, place: int) -> None:
        """Communication: its answer is what the step says, or what it was given."""
        walked = self.walked
        given, slot, is_start = row.args[0], self._slot(row), row.op == COMM_START
        operand = self.types[given.id] if isinstance(given, Value) else None
        for memory in self.memories[given.id] if isinstance(given, Value) else ():
            walked.last[memory] = place
        part = CommPart.START if is_start else CommPart.END if slot in self.begun else CommPart.ALL
        walked.comms.append(CommRow(place, slot, 0 if operand is None else operand.size, part))
        answer = self.answers.get(slot)
        result = operand if answer is None else self.book.type_of(answer[0])
        if answer is not None and answer[1]:
            walked.held[place] = answer[1]
        if result is None:
            raise EstimateError("a communication row gives nothing", at=f"v{row.out.id}")
        walked.rows.append(-1)
        memory = self.begun.pop(slot) if part is CommPart.END else self._memory(result.size, place)
        if (
            is_start and operand is not None and isinstance(given, Value)
        ):  # it gives its operand back, and has memory for what comes
            self.begun[slot] = memory
            self.types[row.out.id], self.memories[row.out.id] = operand, self.memories[given.id]
            return
        walked.last[memory] = place
        self.types[row.out.id] = result
        self.memories[row.out.id] = (memory,)

    def _slot(self, row: LocalRow) -> int:
        slot = row.args[1]
        slot = self.literals[slot.index] if isinstance(slot, Hole) else slot
        if not isinstance(slot, int):
            raise EstimateError("a communication row has no slot", at=f"v{row.out.id}")
        return slot

    def ended(self) -> WalkedSegment:
        """The walk, with what the segment gives."""
        walked = self.walked
        for output in self.segment.outputs:
            (memory,) = self.memories[output.value.id]
            walked.outputs.append((self.types[output.value.id], memory))
            walked.last[memory] = len(walked.rows)
        return walked
