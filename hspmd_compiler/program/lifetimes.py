"""When values die: last uses inside a segment, and of kept values along a rank's instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

from ..base.comm_plan import GradBucket
from .arguments import row_leaves
from .program import (
    ALIASES,
    COMM,
    ClassProgram,
    InputKind,
    Instruction,
    LocalRow,
    Op,
    OutputKind,
    Segment,
    Value,
)

Read = TypeVar("Read", bound=Hashable)
MicroKey = tuple[int, int]
"""(micro-batch, value id)."""

COMPUTE_OPS = frozenset({Op.STEP_COMPUTE, Op.FORWARD, Op.BACKWARD, Op.WEIGHTS})
FRESH_OPS = frozenset(
    {
        "aten.mm.default",
        "aten.addmm.default",
        "aten.bmm.default",
        "aten.add.Tensor",
        "aten.sub.Tensor",
        "aten.mul.Tensor",
        "aten.sum.dim_IntList",
        "aten.embedding_dense_backward.default",
        "hspmd.vocab_embedding_backward",
        "hspmd.vocab_embedding",
        "hspmd.exp_sum",
        "hspmd.row_max",
        "hspmd.nll_pick",
        "hspmd.valid_count",
    }
)
"""Operators whose result is new memory that nothing else refers to."""
VIEW_OPS = ALIASES | {
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.t.default",
    "aten.transpose.int",
}


def row_reads(row: LocalRow) -> list[int]:
    """Values that a row reads, in order, with repeats."""
    return [leaf.id for leaf in row_leaves(row) if isinstance(leaf, Value)]


def dead_after(segment: Segment) -> list[list[int]]:
    """Per row, the values that nothing reads afterwards, its own result included."""
    seen = {output.value.id for output in segment.outputs}
    dead: list[list[int]] = []
    for row in reversed(segment.rows):
        last = [value for value in dict.fromkeys([*row_reads(row), row.out.id]) if value not in seen]
        seen.update(last)
        dead.append(last)
    return dead[::-1]


def unread_inputs(segment: Segment) -> list[int]:
    """Inputs that neither a row nor an output reads."""
    read = {value for row in segment.rows for value in row_reads(row)}
    read |= {output.value.id for output in segment.outputs}
    return [item.value.id for item in segment.inputs if item.value.id not in read]


def overwritable_comms(segment: Segment, dead: list[list[int]]) -> set[int]:
    """Indexes of `comm` rows that may reduce their operand in place: fresh memory, read for the last time."""
    fresh = fresh_values(segment)
    return {
        index
        for index, row in enumerate(segment.rows)
        if row.op == COMM
        and isinstance(row.args[0], Value)
        and row.args[0].id in dead[index]
        and row.args[0].id in fresh
    }


def fresh_by_segment(shared: ClassProgram) -> list[frozenset[str]]:
    """`_fresh_grads` of each segment."""
    return [_fresh_grads(segment) for segment in shared.segments]


def _fresh_grads(segment: Segment) -> frozenset[str]:
    """Parameters whose gradient comes out in memory that nothing else refers to."""
    fresh = fresh_values(segment)
    grads = [output for output in segment.outputs if output.kind is OutputKind.GRAD]
    return frozenset(output.name for output in grads if output.value.id in fresh)


def fresh_values(segment: Segment) -> set[int]:
    """Values in memory of their own that are read exactly once, as an operand or as an output."""
    readers = Counter(output.value.id for output in segment.outputs)
    for row in segment.rows:
        readers.update(row_reads(row))
    fresh: set[int] = set()
    for row in segment.rows:
        reads = row_reads(row)
        own = row.op in FRESH_OPS or (row.op in VIEW_OPS and not fresh.isdisjoint(reads[:1]))
        if own and readers[row.out.id] == 1:
            fresh.add(row.out.id)
    return fresh


def micro_reads(instruction: Instruction, program: ClassProgram) -> list[MicroKey]:
    """Kept values that an instruction reads."""
    if instruction.op in COMPUTE_OPS:
        inputs = program.segments[instruction.segment].inputs
        return [(instruction.mb, item.value.id) for item in inputs if item.kind is InputKind.MICRO]
    if instruction.op is Op.SEND:
        return [(instruction.mb, instruction.value)]
    return []


def last_reads(instructions: Sequence[Instruction], program: ClassProgram) -> list[frozenset[int]]:
    """Per instruction, the kept values of its micro-batch that it is the last to read."""
    last = _last_of([micro_reads(instruction, program) for instruction in instructions])
    return [frozenset(value for _, value in keys) for keys in last]


def kept_values(
    instructions: Sequence[Instruction], releases: Sequence[frozenset[int]]
) -> frozenset[MicroKey]:
    """All values that an instruction reads, by what `last_reads` found."""
    each = zip(instructions, releases, strict=True)
    return frozenset((instruction.mb, value) for instruction, values in each for value in values)


def last_pieces(buckets: list[GradBucket]) -> list[frozenset[str]]:
    """Per bucket, the parameters whose gradient no later bucket reads."""
    return _last_of([[piece.param for piece in bucket.pieces] for bucket in buckets])


def _last_of(reads: list[list[Read]]) -> list[frozenset[Read]]:
    """Per place, what is read there and at no later place."""
    later: set[Read] = set()
    last: list[frozenset[Read]] = []
    for read in reversed(reads):
        last.append(frozenset(read) - later)
        later.update(read)
    return last[::-1]
