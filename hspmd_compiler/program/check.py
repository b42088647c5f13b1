"""Whether a decoded program hangs together: every id, slot, name, rank and box it mentions exists."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass

from ..base.comm_plan import (
    Box,
    CommKind,
    CommStep,
    Counted,
    GradBucket,
    ParamBucket,
    Piece,
    box_volume,
)
from ..base.dtypes import BYTES
from ..errors import ArtifactError
from .arguments import holes_of
from .check_order import order_problems
from .check_segment import comm_slots, counted_slots, problems_of_segment
from .exchange_plan import has_form
from .gradients.check_waves import wave_problems
from .program import (
    ZERO_PARAMS,
    ClassProgram,
    InputKind,
    Instruction,
    Op,
    OutputKind,
    Program,
    RankProgram,
    Segment,
    Shard,
)
from .sized.counted_step import problems_of_counted
from .sized.reference_check import problems_of_sizes

ReferenceProblem = tuple[str, str]

SHOWN_PROBLEMS = 20
MOST_ELEMENTS = 1 << 48
STORED_INPUTS = frozenset({InputKind.PARAM, InputKind.STORED})

SLOT_USERS = {Op.STEP_REDUCE: "comms", Op.SEND: "transfers", Op.RECV: "transfers"}
SEGMENT_USERS = frozenset({Op.STEP_COMPUTE, Op.FORWARD, Op.BACKWARD, Op.WEIGHTS})
TAGGED = frozenset({Op.SEND, Op.RECV})


def check(program: Program) -> None:
    """Raises one error that lists every problem of the program's own references."""
    problems = list(problems_of_program(program))
    if not problems:
        return
    shown = problems[:SHOWN_PROBLEMS]
    left = len(problems) - len(shown)
    raise ArtifactError(
        f"the programs refer to things that are not there ({len(problems)} places)",
        details=[*shown, *([("...", f"{left} more")] if left else [])],
        rule="every value, slot, literal, parameter, group and rank that a program names is in the artifact",
        fix="compile again with this version of hspmd_compiler",
    )


def problems_of_program(program: Program) -> Iterator[ReferenceProblem]:
    """Each place that refers to something that is not there, and what."""
    yield from _problems_of_inputs(program)
    yield from _problems_of_groups(program)
    for name, shared in program.classes.items():
        for segment in shared.segments:
            yield from problems_of_segment(f"class {name}, segment {segment.name}", segment, program.inputs)
    yield from problems_of_sizes(program)
    needs = {name: needs_of(shared) for name, shared in program.classes.items()}
    entries = Entries(set(program.groups))
    for own in program.ranks:
        where = f"rank {own.rank}"
        shared_by = program.classes.get(own.class_name)
        if shared_by is None:
            yield where, f"class {own.class_name} is not in the artifact"
        elif not 0 <= own.rank < program.world_size:
            yield where, f"not below the world size {program.world_size}"
        else:
            found = _rank_problems(program, own, shared_by, needs[own.class_name], entries)
            yield from ((where, text) for text in found)


def _problems_of_inputs(program: Program) -> Iterator[ReferenceProblem]:
    if program.batch < 1:
        yield "batch", f"{program.batch}: a step has at least one sample"
    dims = {own.row_dim for own in program.ranks}
    if not dims <= {0, 1} or len(dims) > 1:
        yield (
            "rows",
            f"along dims {sorted(dims)}: of samples, 0, or of one row's tokens, 1, alike on all ranks",
        )
        return
    dim = max(dims, default=0)
    what = "token" if dim else "sample"
    for name in program.inputs.keys() & program.left_out.keys():
        yield f"input {name}", "left out, and read"
    for name, (shape, dtype) in (*program.inputs.items(), *program.left_out.items()):
        if len(shape) <= dim or shape[dim] != program.batch:
            yield f"input {name}", f"{list(shape)}: dim {dim} is the {what}, here {program.batch}"
        yield from ((f"input {name}", text) for text in (*_size_problems(shape), *_dtype_problems(dtype)))


def _size_problems(*shapes: tuple[int, ...] | None) -> Iterator[str]:
    """Sizes are 0 or more, and no tensor has more elements than an address reaches."""
    for shape in shapes:
        if shape is not None and (min(shape, default=0) < 0 or math.prod(shape) > MOST_ELEMENTS):
            yield f"{list(shape)} are not the sizes of a tensor"


def _problems_of_groups(program: Program) -> Iterator[ReferenceProblem]:
    for index, group in enumerate(program.groups):
        if not group or list(group) != sorted(set(group)) or group[0] < 0 or group[-1] >= program.world_size:
            yield f"group {index}", f"{list(group)}: not ascending ranks below {program.world_size}"


class Entries:
    """Problems of entries of the ranks' tables; an entry that several ranks share is judged once."""

    def __init__(self, groups: set[tuple[int, ...]]) -> None:
        self._groups = groups
        self._known: dict[int, tuple[object, list[str]]] = {}

    def of_step(self, rank: int, step: CommStep) -> Iterator[str]:
        """Problems of a communication step of a rank."""
        yield from self._of(step, lambda: _step_problems(step, self._groups))
        if rank not in step.group:
            yield f"rank {rank} is not in its group {list(step.group)}"

    def of_shard(self, shard: Shard) -> list[str]:
        """Problems of a shard."""
        return self._of(shard, lambda: _shard_problems(shard))

    def of_bucket(self, rank: int, bucket: GradBucket, shards: Container[str]) -> Iterator[str]:
        """Problems of a gradient bucket of a rank with these shards."""
        yield from self._of(bucket, lambda: _bucket_problems(bucket))
        if rank not in bucket.group or (len(bucket.group) > 1 and bucket.group not in self._groups):
            yield f"the group {list(bucket.group)} is not one of the artifact's groups with rank {rank}"
        for piece in bucket.pieces:
            if piece.param not in shards:
                yield f"no shard of {piece.param}"

    def _of(self, entry: object, found: Callable[[], Iterator[str]]) -> list[str]:
        if id(entry) not in self._known:
            self._known[id(entry)] = (entry, list(found()))
        return self._known[id(entry)][1]


def _rank_problems(
    program: Program, own: RankProgram, shared: ClassProgram, needs: Needs, entries: Entries
) -> Iterator[str]:
    yield from _reference_problems(own, needs)
    for low, high in own.rows:
        if not 0 <= low <= high <= program.batch:
            yield f"rows [{low}, {high}) are not in a batch of {program.batch}"
    if own.pieces and (len(own.pieces) != len(own.rows) or not all(piece.runs for piece in own.pieces)):
        yield f"{len(own.pieces)} pieces of rows, or pieces of nothing, in {len(own.rows)} micro-batches"
    if own.segment_stages and len(own.segment_stages) != len(shared.segments):
        yield f"stages of {len(own.segment_stages)} segments, of which the class has {len(shared.segments)}"
    for name, steps in (("comm", own.comms), ("transfer", own.transfers)):
        for slot, step in enumerate(steps):
            yield from (f"{name} {slot}: {text}" for text in entries.of_step(own.rank, step))
    for shard in own.shards:
        yield from (f"shard {shard.name}: {text}" for text in entries.of_shard(shard))
    names = {shard.name for shard in own.shards}
    for bucket in own.grad_buckets:
        yield from (f"bucket {bucket.id}: {text}" for text in entries.of_bucket(own.rank, bucket, names))
    yield from _gathering_problems(own)
    for index, instruction in enumerate(own.instructions):
        found = _instruction_problems(instruction, own, shared)
        yield from (f"instruction {index} {instruction.op.value}: {text}" for text in found)
    yield from order_problems(own)
    yield from wave_problems(own, shared)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a class program takes from its ranks, each with the first place that takes it.

    counted: whether slots are given counts.
    """

    literals: dict[int, str]
    comms: dict[int, str]
    parameters: dict[str, str]
    counted: dict[int, bool]


def needs_of(shared: ClassProgram) -> Needs:
    """Collected once per class, since many ranks share one."""
    needs = Needs({}, {}, {}, {})
    for segment in shared.segments:
        where = f"segment {segment.name}"
        for row in segment.rows:
            for hole in holes_of(row):
                needs.literals.setdefault(hole, f"{where}, v{row.out.id}")
        for slot in comm_slots(segment):
            needs.comms.setdefault(slot, where)
        needs.counted.update(counted_slots(segment))
        for name in _stored_names(segment):
            needs.parameters.setdefault(name, where)
    return needs


def _stored_names(segment: Segment) -> list[str]:
    read = [item.name for item in segment.inputs if item.kind in STORED_INPUTS]
    return read + [item.name for item in segment.outputs if item.kind in (OutputKind.GRAD, OutputKind.BUFFER)]


def _reference_problems(own: RankProgram, needs: Needs) -> Iterator[str]:
    """What the class program takes from the rank, and the rank does not have."""
    held = {shard.name for shard in own.shards}
    for hole, where in needs.literals.items():
        if not 0 <= hole < len(own.literals):
            yield f"{where}: no literal {hole}"
    for slot, where in needs.comms.items():
        if not 0 <= slot < len(own.comms):
            yield f"{where}: no comm {slot}"
        elif (own.comms[slot].counted is not Counted.NO) != needs.counted[slot]:
            yield f"{where}: comm {slot} is counted, and is given no counts, or the other way round"
    for name, where in needs.parameters.items():
        if name not in held:
            yield f"{where}: no shard of {name}"


def _instruction_problems(step: Instruction, own: RankProgram, shared: ClassProgram) -> Iterator[str]:
    if step.op in SEGMENT_USERS and not 0 <= step.segment < len(shared.segments):
        yield f"no segment {step.segment}"
    if step.op in SEGMENT_USERS | TAGGED and not 0 <= step.mb < len(own.rows):
        yield f"no micro-batch {step.mb}"
    table = SLOT_USERS.get(step.op)
    if table is not None and not 0 <= step.slot < len(getattr(own, table)):
        yield f"no slot {step.slot} in {table}"
    if step.op in TAGGED and step.tag < 0:
        yield "no tag"
    if step.over >= 0 and step.op is not Op.RECV:
        yield "tells which sends are over, which only RECV does"


def _step_problems(step: CommStep, groups: set[tuple[int, ...]]) -> Iterator[str]:
    yield from _dtype_problems(step.dtype)
    yield from _size_problems(step.src_view, step.dst_view, step.dst_shape)
    if step.kind is not CommKind.SEND_RECV and step.group not in groups:
        yield f"the group {list(step.group)} is not one of the artifact's groups"
    if step.kind is CommKind.ALL_REDUCE:
        return
    yield from problems_of_counted(step)
    if not has_form(step):
        sums = step.kind is CommKind.REDUCE_SCATTER
        does = "have an addend of every sum" if sums else "give all members the same"
        yield f"it does not {does}, as the form {step.form.value} does"
    yield from _piece_problems(step, step.sends, step.src_view, "sends")
    yield from _piece_problems(step, step.recvs, step.dst_view, "receives")
    if step.dst_view is not None and step.dst_shape is not None:
        if math.prod(step.dst_view) != math.prod(step.dst_shape):
            yield f"the result {list(step.dst_shape)} can't be viewed as {list(step.dst_view)}"
    elif (step.dst_view is None) != (step.dst_shape is None):
        yield "a result needs both its shape and its view"


def _piece_problems(
    step: CommStep, pieces: Iterable[Piece], view: tuple[int, ...] | None, verb: str
) -> Iterator[str]:
    for piece in pieces:
        if piece.peer not in step.group:
            yield f"{verb}: rank {piece.peer} is not in the group {list(step.group)}"
        if view is None:
            yield f"{verb}: a piece of a tensor that this rank does not have"
        else:
            yield from (f"{verb}: {text}" for text in _box_problems(piece.boxes, view))


def _shard_problems(shard: Shard) -> Iterator[str]:
    yield from _dtype_problems(shard.dtype)
    yield from _size_problems(shard.shape, shard.view, shard.whole_shape, shard.whole_view)
    for shape, view in ((shard.shape, shard.view), (shard.whole_shape, shard.whole_view)):
        if math.prod(shape) != math.prod(view):
            yield f"{list(shape)} can't be viewed as {list(view)}"
    for whole, local in (*shard.boxes, *shard.owned):
        yield from _box_problems([whole], shard.whole_view)
        yield from _box_problems([local], shard.view)
        if box_volume(whole) != box_volume(local):
            yield f"boxes {_box_text(whole)} and {_box_text(local)} differ in size"


def _bucket_problems(bucket: GradBucket) -> Iterator[str]:
    yield from _dtype_problems(bucket.dtype)
    for piece in bucket.pieces:
        yield from (f"{piece.param}: {text}" for text in _size_problems(piece.src_view, piece.dst_view))
        for view, boxes in ((piece.src_view, piece.src_boxes), (piece.dst_view, piece.dst_boxes)):
            if boxes is None:
                continue
            if view is None:
                yield f"{piece.param}: boxes without a view"
                continue
            yield from (f"{piece.param}: {text}" for text in _box_problems(boxes, view))
            if sum(map(box_volume, boxes)) != piece.length:
                yield f"{piece.param}: boxes do not hold {piece.length} elements"


def _gathering_problems(own: RankProgram) -> Iterator[str]:
    """What the steps of buckets and the rows of shards need."""
    shards = {shard.name: shard for shard in own.shards}
    for shard in own.shards:
        if not 0 <= shard.zero <= ZERO_PARAMS:
            yield f"shard {shard.name}: zero {shard.zero} is none of 0 to {ZERO_PARAMS}"
        yield from (f"shard {shard.name}: {text}" for text in _dtype_problems(shard.local_dtype))
    for bucket in own.grad_buckets:
        yield from (f"bucket {bucket.id}: {text}" for text in _slot_problems(bucket.slot, bucket.group, own))
    for gather in own.param_buckets:
        found = (*_slot_problems(gather.slot, gather.group, own), *_gather_problems(gather, shards))
        yield from (f"parameter bucket {gather.id}: {text}" for text in found)


def _slot_problems(slot: int, group: tuple[int, ...], own: RankProgram) -> Iterator[str]:
    if not -1 <= slot < len(own.comms):
        yield f"no comm {slot}"
    elif slot >= 0 and own.comms[slot].group != group:
        yield "its step is one of other ranks"


def _gather_problems(bucket: ParamBucket, shards: dict[str, Shard]) -> Iterator[str]:
    yield from _dtype_problems(bucket.dtype)
    for piece in bucket.pieces:
        if piece.param not in shards:
            yield f"no shard of {piece.param}"
            continue
        shard = shards[piece.param]
        for boxes, length in ((piece.boxes, piece.length), (piece.own, piece.row[1] - piece.row[0])):
            yield from (f"{piece.param}: {text}" for text in _box_problems(boxes, shard.view))
            if sum(map(box_volume, boxes)) != length:
                yield f"{piece.param}: boxes do not hold {length} elements"
        if not 0 <= piece.row[0] <= piece.row[1] <= sum(map(box_volume, shard.kept)):
            yield f"{piece.param}: {list(piece.row)} is not in the row of what this rank stores"


def _dtype_problems(name: str) -> Iterator[str]:
    if name not in BYTES:
        yield f"{name!r} is not an element type"


def _box_problems(boxes: Iterable[Box], view: tuple[int, ...]) -> Iterator[str]:
    for box in boxes:
        inside = len(box) == len(view) and all(
            0 <= low <= high <= size for (low, high), size in zip(box, view, strict=True)
        )
        if not inside:
            yield f"box {_box_text(box)} is not inside {list(view)}"


def _box_text(box: Box) -> str:
    return "[" + ", ".join(f"{low}:{high}" for low, high in box) + "]"
