"""What all ranks timed, as one timeline: waiting apart from moving data, by who came last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...base.comm_plan import CommKind, CommStep
from ...base.dtypes import BYTES
from ...base.timeline import MemoryPoint, Span, SpanKind, Timeline
from ...program.boxes import received_volumes, sent_volumes
from ...program.program import Instruction, Op, RankProgram
from .step_timer import Key, Part

MEASURED = "measured"
COMPUTED = (Op.FORWARD, Op.BACKWARD, Op.WEIGHTS, Op.STEP_COMPUTE)
KINDS = {
    Op.STEP_COMPUTE: SpanKind.STEP_VALUE,
    Op.STEP_REDUCE: SpanKind.STEP_VALUE,
    Op.FORWARD: SpanKind.FORWARD,
    Op.BACKWARD: SpanKind.BACKWARD,
    Op.WEIGHTS: SpanKind.BACKWARD,
    Op.SEND: SpanKind.SEND,
    Op.RECV: SpanKind.RECV,
    Op.GRAD_SCATTER: SpanKind.GRADIENT,
    Op.REDUCE_START: SpanKind.GRADIENT,
    Op.REDUCE_WAIT: SpanKind.GRADIENT,
    Op.GRAD_SYNC: SpanKind.GRADIENT,
    Op.LOSS: SpanKind.LOSS,
    Op.OPTIMIZER: SpanKind.UPDATE,
    Op.PARAM_GATHER: SpanKind.GATHER,
    Op.PARAM_DROP: SpanKind.OTHER,
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of one rank on the clock of rank 0. key: of an exchange; sends: it gives and takes nothing.

    waits: nothing is moved, as far as is known. beside: the rank did something else meanwhile.
    """

    span: Span
    key: Key = ()
    sends: bool = False
    waits: bool = False
    beside: bool = False


@dataclass(frozen=True, slots=True)
class RankRecord:
    """What one rank timed of one step, on the clock of rank 0."""

    begins_s: float
    stretches: tuple[Stretch, ...]
    memory: tuple[MemoryPoint, ...]
    label: str


def rank_record(
    program: RankProgram,
    parts: Sequence[Part],
    memory: Sequence[tuple[float, int]],
    offset_s: float,
    label: str,
) -> RankRecord:
    """One rank's part of a timeline. offset_s: to the clock of rank 0."""
    stretches = [_stretch(program, part, offset_s) for part in parts]
    points = tuple(MemoryPoint(program.rank, at + offset_s, held) for at, held in memory)
    begins_s = min((part.start_s for part in parts), default=0.0) + offset_s
    return RankRecord(begins_s, tuple(stretches), points, label)


def merged(records: Sequence[RankRecord]) -> Timeline:
    """The timeline of a step from the records of all ranks, time 0 where the first begins."""
    zero = min((record.begins_s for record in records if record.stretches), default=0.0)
    came = _arrivals(records)
    spans: list[Span] = []
    for record in records:
        own = [stretch for stretch in record.stretches if not stretch.beside]
        parts = [part for stretch in own for part in _split(stretch, came)]
        spans += _joined([_moved(span, zero) for span in parts if span.end_s > span.start_s])
    memory = [replace(point, time_s=point.time_s - zero) for record in records for point in record.memory]
    beside = [
        _moved(span, zero)
        for record in records
        for stretch in record.stretches
        for span in _split(stretch, came)
        if stretch.beside and span.kind is not SpanKind.WAIT and span.end_s > span.start_s
    ]
    labels = {rank: each.label for rank, each in enumerate(records)}
    return Timeline(MEASURED, tuple(spans), tuple(memory), labels, tuple(beside))


def _stretch(program: RankProgram, part: Part, offset_s: float) -> Stretch:
    instruction = program.instructions[min(part.position, len(program.instructions) - 1)]
    kind = KINDS[instruction.op]
    if part.key and instruction.op in COMPUTED:
        kind = SpanKind.COLLECTIVE
    span = Span(
        rank=program.rank,
        start_s=part.start_s + offset_s,
        end_s=part.end_s + offset_s,
        kind=kind,
        label=_label(instruction, part.step, kind),
        position=part.position,
        mb=instruction.mb,
        group=part.peers,
        size_bytes=part.size_bytes or _moved_bytes(part.step, program.rank),
    )
    return Stretch(span, part.key, instruction.op is Op.SEND, part.key == ("left",), part.beside)


def _label(instruction: Instruction, step: CommStep | None, kind: SpanKind) -> str:
    if kind is SpanKind.COLLECTIVE and step is not None:
        return f"{step.kind.value} {step.id}"
    name = instruction.op.value.lower().replace("_", " ")
    return name if instruction.mb < 0 else f"{name}, micro-batch {instruction.mb}"


def _moved_bytes(step: CommStep | None, rank: int) -> int:
    """The larger of what a rank gives to others and what it takes from them."""
    if step is None or step.kind is CommKind.ALL_REDUCE:
        return 0
    both = (sent_volumes(step), received_volumes(step))
    most = max(sum(size for peer, size in volumes.items() if peer != rank) for volumes in both)
    return most * BYTES[step.dtype]


def _arrivals(records: Sequence[RankRecord]) -> Mapping[Key, float]:
    """When each exchange can begin: when its last member has come, or its last sender."""
    came: dict[Key, float] = {}
    started = {each.key for record in records for each in record.stretches if each.beside}
    for record in records:
        for stretch in record.stretches:
            is_receiver = stretch.key[:1] == ("transfer",) and not stretch.sends
            awaits = stretch.key in started and not stretch.beside
            if stretch.key and not (stretch.waits or is_receiver or awaits):
                came[stretch.key] = max(came.get(stretch.key, 0.0), stretch.span.start_s)
    return came


def _split(stretch: Stretch, came: Mapping[Key, float]) -> Iterator[Span]:
    """Waiting for others apart from the rest."""
    span = stretch.span
    if stretch.waits:
        yield replace(span, kind=SpanKind.WAIT)
        return
    ready = span.start_s if stretch.sends else came.get(stretch.key, span.start_s)
    ready = min(max(ready, span.start_s), span.end_s)
    yield replace(span, end_s=ready, kind=SpanKind.WAIT)
    yield replace(span, start_s=ready)


def _joined(spans: Sequence[Span]) -> Iterator[Span]:
    """Neighbours of one kind in one instruction are one span, as packing and sending are."""
    held: Span | None = None
    for span in spans:
        if held is not None and (held.position, held.kind) == (span.position, span.kind):
            alike = held.group == span.group
            group = held.group if alike else tuple(sorted({*held.group, *span.group}))
            held = replace(held, end_s=span.end_s, group=group, size_bytes=held.size_bytes + span.size_bytes)
            continue
        if held is not None:
            yield held
        held = span
    if held is not None:
        yield held


def _moved(span: Span, zero: float) -> Span:
    return replace(span, start_s=span.start_s - zero, end_s=span.end_s - zero)
