"""What a rank's instructions are by shape: walked segments, and how the values that it keeps live."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from ...base.comm_plan import CommKind, CommStep, GatherForm
from ...base.dtypes import BYTES, ELEMENT_TYPES
from ...program.arguments import holes_of
from ...program.boxes import full_box, received_volumes, volume
from ...program.exchange_plan import lands_in_turn
from ...program.lifetimes import COMPUTE_OPS
from ...program.program import (
    KEY_SIZE,
    ClassProgram,
    InputKind,
    Instruction,
    Op,
    OutputKind,
    Program,
    RankProgram,
    SegmentInput,
)
from ...program.quick.plain import PlainTyped, made
from .segment_walk import TypeBook, TypeOf, WalkedSegment, walk_segment

OFFSETS_ONLY = frozenset(
    {
        *("hspmd.vocab_embedding", "hspmd.vocab_embedding_backward", "hspmd.nll_pick", "hspmd.nll_backward"),
        *("hspmd.zero_unless", "hspmd.random_mask", "hspmd.random_numbers"),
    }
)
"""Kernels whose literals say where a rank's piece lies: shapes do not follow from them."""
MICRO_OPS = COMPUTE_OPS | {Op.SEND, Op.RECV}


@dataclass(frozen=True, slots=True)
class MicroStep:
    """One instruction of a micro-batch.

    extra: most bytes more than before, while it runs. delta: bytes more afterwards. new: of all that it
    gives, kept or not. until_sent: of `delta`, or of what would have died, what lives until sends are over.
    grads: parameter -> (bytes of the sum of its gradient, whether that is another memory than it gives).
    """

    walked: WalkedSegment | None = None
    extra: int = 0
    delta: int = 0
    new: int = 0
    kept: int = 0
    until_sent: int = 0
    grads: Mapping[str, tuple[int, bool]] = field(default_factory=dict)


@dataclass(slots=True)
class RankShape:
    """What ranks that are alike share. steps: by position, of instructions of a micro-batch."""

    own: RankProgram
    steps: list[MicroStep | None]


class ShapeTable:
    """The shapes of all ranks of a program; ranks that are alike have one object."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.book = TypeBook()
        self._shapes: dict[Hashable, RankShape] = {}
        self._walked: dict[Hashable, WalkedSegment] = {}
        self._lives: dict[Hashable, tuple[MicroStep, ...]] = {}
        self._holes: dict[str, list[int]] = {}
        self._entries: dict[int, tuple[object, Hashable]] = {}

    def of(self, own: RankProgram) -> RankShape:
        """The shape of one rank."""
        alike = self._alike(own)
        key = (
            alike,
            tuple(high - low for low, high in own.rows),
            tuple([self._step_key(step) for step in own.transfers]),
            tuple([self._bucket_key(bucket) for bucket in (*own.grad_buckets, *own.param_buckets)]),
            tuple([(i.op, i.segment, i.mb, i.value, i.slot, i.over, i.wave) for i in own.instructions]),
        )
        if key not in self._shapes:
            self._shapes[key] = RankShape(own, self._steps(own, alike))
        return self._shapes[key]

    def _alike(self, own: RankProgram) -> Hashable:
        """All that the types and sizes inside segments follow from, but their inputs."""
        if own.class_name not in self._holes:
            shared = self.program.classes[own.class_name]
            rows = [row for segment in shared.segments for row in segment.rows if row.op not in OFFSETS_ONLY]
            holes = {hole for row in rows for hole in holes_of(row)} if own.literals else ()
            self._holes[own.class_name] = sorted(holes)
        return (
            own.class_name,
            own.device_family,
            tuple([(shard.name, shard.shape, shard.local_dtype, shard.zero) for shard in own.shards]),
            tuple([self._step_key(step) for step in own.comms]),
            repr([own.literals[hole] for hole in self._holes[own.class_name]]),
        )

    def _step_key(self, step: CommStep) -> Hashable:
        if id(step) not in self._entries:
            key = (step.kind, step.src_view, step.dst_shape, step.dtype)
            sizes = tuple(volume(piece.boxes) for piece in step.sends), tuple(received_volumes(step).values())
            self._entries[id(step)] = (step, (*key, *sizes))
        return self._entries[id(step)][1]

    def _bucket_key(self, bucket: object) -> Hashable:
        if id(bucket) not in self._entries:
            pieces = tuple(
                (piece.param, piece.length, getattr(piece, "src_boxes", None) is None)
                for piece in bucket.pieces  # type: ignore[attr-defined]
            )
            group = len(bucket.group)  # type: ignore[attr-defined]
            self._entries[id(bucket)] = (bucket, (pieces, group, getattr(bucket, "wave", -1)))
        return self._entries[id(bucket)][1]

    def _steps(self, own: RankProgram, alike: Hashable) -> list[MicroStep | None]:
        by_mb: dict[int, list[int]] = {}
        for position, instruction in enumerate(own.instructions):
            if instruction.op in MICRO_OPS:
                by_mb.setdefault(instruction.mb, []).append(position)
        steps: list[MicroStep | None] = [None] * len(own.instructions)
        life = _Lives(self, own, alike)
        for mb, positions in by_mb.items():
            found = life.of(mb, [own.instructions[position] for position in positions])
            for position, step in zip(positions, found, strict=True):
                steps[position] = step
        return steps

    def walked(
        self, own: RankProgram, alike: Hashable, segment: int, inputs: tuple[TypeOf, ...]
    ) -> WalkedSegment:
        """A segment for inputs of these types."""
        key = (alike, segment, inputs)
        if key not in self._walked:
            answers = {
                slot: (dense(step.dst_shape, step.dtype), _moving_bytes(step))
                for slot, step in enumerate(own.comms)
                if step.kind is not CommKind.ALL_REDUCE and step.dst_shape is not None
            }
            rows = self.program.classes[own.class_name].segments[segment]
            beside = {slot for slot, step in enumerate(own.comms) if step.kind is CommKind.ALL_GATHER}
            self._walked[key] = walk_segment(rows, own.literals, inputs, answers, self.book, beside)
        return self._walked[key]


class _Memory:
    """Bytes that live while a value refers to them, or a send does."""

    __slots__ = ("pinned", "size", "users")

    def __init__(self, size: int) -> None:
        self.size, self.users, self.pinned = size, 0, False


class _Lives:
    """The micro-batches of one rank; those with the same instructions and rows live alike."""

    def __init__(self, table: ShapeTable, own: RankProgram, alike: Hashable) -> None:
        self.table, self.own, self.alike = table, own, alike
        self.shared: ClassProgram = table.program.classes[own.class_name]
        self.shards = {shard.name: shard for shard in own.shards}
        self.step_types: dict[int, TypeOf] = {}
        self.known: dict[Hashable, list[MicroStep]] = {}

    def of(self, mb: int, instructions: Sequence[Instruction]) -> list[MicroStep]:
        """One step per instruction of a micro-batch."""
        held = range(len(self.own.rows))
        size = self.own.rows[mb][1] - self.own.rows[mb][0] if mb in held else 0
        piece = self.own.piece_of(mb) if mb in held else None
        tokens = None if piece is None else piece.tokens
        key = (size, tokens, tuple((i.op, i.segment, i.value, i.slot) for i in instructions))
        if key not in self.known:
            self.known[key] = _Life(self, size, mb, instructions).steps
        return self.known[key]


class _Life:
    """One micro-batch from its first instruction to its last."""

    def __init__(self, lives: _Lives, size: int, mb: int, instructions: Sequence[Instruction]) -> None:
        self.lives, self.size, self.mb = lives, size, mb
        self.values: dict[int, tuple[TypeOf, _Memory]] = {}
        self.steps: list[MicroStep] = []
        self.left = [self._reads(instruction) for instruction in instructions]
        later: set[int] = set()
        self.last: list[set[int]] = []
        self.after: list[set[int]] = []
        for reads in reversed(self.left):
            self.after.append(set(later))
            self.last.append(reads - later)
            later |= reads
        self.last.reverse()
        self.after.reverse()
        for place, instruction in enumerate(instructions):
            if instruction.op in COMPUTE_OPS:
                self.steps.append(self._compute(place, instruction))
            elif instruction.op is Op.SEND:
                self.steps.append(self._send(place, instruction))
            else:
                self.steps.append(self._recv(place, instruction))

    def _reads(self, instruction: Instruction) -> set[int]:
        if instruction.op in COMPUTE_OPS:
            inputs = self.lives.shared.segments[instruction.segment].inputs
            return {item.value.id for item in inputs if item.kind is InputKind.MICRO}
        return {instruction.value} if instruction.op is Op.SEND else set()

    def _compute(self, place: int, instruction: Instruction) -> MicroStep:
        lives = self.lives
        segment = lives.shared.segments[instruction.segment]
        types = tuple([self._type(item) for item in segment.inputs])
        walked = lives.table.walked(lives.own, lives.alike, instruction.segment, types)
        last = self.last[place]
        owned = [item.kind is InputKind.MICRO and item.value.id in last for item in segment.inputs]
        before = [self.values[i.value.id][1] if i.kind is InputKind.MICRO else None for i in segment.inputs]
        given = dict(zip(walked.given, before, strict=True))
        made: dict[int, _Memory] = {}
        kept = new = 0
        grads: dict[str, tuple[int, bool]] = {}
        for output, (typed, memory) in zip(segment.outputs, walked.outputs, strict=True):
            held = given.get(memory)
            if held is None and memory not in made and walked.made[memory] >= 0:
                made[memory] = _Memory(walked.sizes[memory])
                new += walked.sizes[memory]
            held = held or made.get(memory) or _Memory(0)  # of a parameter, or of the batch
            if output.kind is OutputKind.MICRO and output.value.id in self.after[place]:
                kept += held.size if not held.users else 0
                held.users += 1
                self.values[output.value.id] = (typed, held)
            elif output.kind is OutputKind.STEP:
                lives.step_types[output.value.id] = typed
            elif output.kind is OutputKind.GRAD:
                grads[output.name] = _sum_bytes(typed)
        freed, pinned = self._free(last)
        return MicroStep(walked, walked.extra(owned), kept - freed, new, kept, pinned, grads)

    def _type(self, item: SegmentInput) -> TypeOf:
        lives, book = self.lives, self.lives.table.book
        kind = item.kind
        if kind is InputKind.MICRO:
            return self.values[item.value.id][0]
        if kind is InputKind.PARAM:
            shard = lives.shards[item.name]
            return book.type_of(dense(shard.shape, shard.local_dtype))
        if kind is InputKind.STORED:
            shard = lives.shards[item.name]
            return book.type_of(dense((volume(shard.kept),), shard.dtype))
        if kind is InputKind.DATA:
            shape, dtype = lives.table.program.inputs[item.name]
            return book.type_of(dense(lives.own.micro_shape(item.name, shape, self.size, self.mb), dtype))
        if kind is InputKind.DOCUMENTS:
            shape, _ = lives.table.program.inputs[item.name]
            return book.type_of(dense(lives.own.micro_shape(item.name, shape, self.size, self.mb), "int64"))
        if kind is InputKind.STEP:
            return lives.step_types[item.value.id]
        return book.type_of(dense((KEY_SIZE,), "int64"))

    def _free(self, values: set[int]) -> tuple[int, int]:
        """Bytes that die with values, and those of them that live on until they are sent."""
        freed = pinned = 0
        for value in values:
            _, held = self.values.pop(value)
            held.users -= 1
            if not held.users:
                freed += 0 if held.pinned else held.size
                pinned += held.size if held.pinned else 0
        return freed, pinned

    def _send(self, place: int, instruction: Instruction) -> MicroStep:
        """What is sent stays until all sends are over: a copy of the pieces, or the value itself if whole."""
        step = self.lives.own.transfers[instruction.slot]
        _, held = self.values[instruction.value]
        copied = 0
        for piece in step.sends:
            if step.src_view is not None and piece.boxes == (full_box(step.src_view),):
                held.pinned = True
            else:
                copied += volume(piece.boxes) * BYTES[step.dtype]
        freed, pinned = self._free(self.last[place])
        return MicroStep(None, copied, copied - freed, copied, 0, copied + pinned)

    def _recv(self, place: int, instruction: Instruction) -> MicroStep:
        step = self.lives.own.transfers[instruction.slot]
        shape = step.dst_shape or ()
        typed = self.lives.table.book.type_of(dense(shape, step.dtype))
        rows = sum(received_volumes(step).values()) * BYTES[step.dtype]
        whole = len(step.recvs) == 1 and step.dst_view is not None
        is_whole = whole and step.recvs[0].boxes == (full_box(step.dst_view or ()),)
        size = rows if is_whole else typed.size
        kept = 0
        if instruction.value in self.after[place]:
            held = _Memory(size)
            held.users, kept = 1, size
            self.values[instruction.value] = (typed, held)
        return MicroStep(None, size + (0 if is_whole else rows), kept, size, kept)


def _moving_bytes(step: CommStep) -> int:
    """What an exchange holds beside its result: pieces that are cut out, and those that arrive."""
    whole = None if step.src_view is None else (full_box(step.src_view),)
    cut = sum(volume(piece.boxes) for piece in step.sends if piece.boxes != whole)
    is_result = step.form is GatherForm.ALL_TO_ALL and lands_in_turn(step)
    return (cut + (0 if is_result else sum(received_volumes(step).values()))) * BYTES[step.dtype]


NARROW = frozenset({"bfloat16", "float16"})


def _sum_bytes(typed: TypeOf) -> tuple[int, bool]:
    """Bytes of a running sum of gradients, and whether it is another memory than the first of them."""
    part = typed.parts[0]
    assert part is not None, "an output is one tensor"
    narrow = part[1].name in NARROW
    return prod(part[0]) * (4 if narrow else part[1].itemsize), narrow


def dense(shape: Sequence[int], dtype: str) -> PlainTyped:
    """The type of a contiguous tensor."""
    return made(shape, ELEMENT_TYPES[dtype]).typed
