"""A rank's program for people: segments as lines of code with the rank's literals, then its instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..base.comm_plan import CommKind, CommStep, GatherForm
from .arguments import fill_holes
from .program import (
    COMM,
    ClassProgram,
    DType,
    InputKind,
    Instruction,
    LocalRow,
    Op,
    Program,
    RankProgram,
    Segment,
    SegmentInput,
    SegmentOutput,
    Value,
)

NAMED_INPUTS = frozenset({InputKind.PARAM, InputKind.STORED, InputKind.DATA, InputKind.DOCUMENTS})
INDENT = "    "
NOT_IN_A_NAME = re.compile(r"\W")


def segment_lines(segment: Segment, own: RankProgram) -> Iterator[str]:
    """One segment as a function; a comment says what a row completes or communicates."""
    inputs = ", ".join(_input_text(item) for item in segment.inputs)
    yield f"def {NOT_IN_A_NAME.sub('_', segment.name)}({inputs}):"
    texts = [(row_text(row, own.literals), _row_note(row, own)) for row in segment.rows]
    width = max((len(text) for text, note in texts if note), default=0)
    for text, note in texts:
        yield INDENT + (f"{text:<{width}}  # {note}" if note else text)
    yield INDENT + "return " + ", ".join(_output_text(item) for item in segment.outputs)


def row_text(row: LocalRow, literals: Sequence[object]) -> str:
    """`v7 = aten.mm.default(v3, v5)`."""
    parts = [argument_text(fill_holes(argument, literals)) for argument in row.args]
    parts += [f"{name}={argument_text(fill_holes(item, literals))}" for name, item in row.kwargs.items()]
    return f"v{row.out.id} = {row.op}({', '.join(parts)})"


def argument_text(argument: object) -> str:
    """An argument without holes, as in Python."""
    if isinstance(argument, Value):
        return f"v{argument.id}"
    if isinstance(argument, DType):
        return argument.name
    if isinstance(argument, (tuple, list)):
        return "[" + ", ".join(map(argument_text, argument)) + "]"
    return repr(argument)


def kind_text(step: CommStep) -> str:
    """The kind, and the form in which unequal pieces are gathered: `all_gather padded`."""
    plain = step.form is GatherForm.ALL_TO_ALL
    return step.kind.value if plain else f"{step.kind.value} {step.form.value}"


def comm_text(step: CommStep) -> str:
    """`all_gather float32 over [0, 1] (note)`; a transfer shows its direction."""
    if step.kind is CommKind.SEND_RECV:
        to = sorted({piece.peer for piece in step.sends})
        come_from = sorted({piece.peer for piece in step.recvs})
        moves = [f"to {to}"] * bool(to) + [f"from {come_from}"] * bool(come_from)
        head = f"{step.kind.value} {step.dtype} {' '.join(moves)}"
    else:
        head = f"{kind_text(step)} {step.dtype} over {list(step.group)}"
    if step.kind is CommKind.ALL_REDUCE:
        head += f" by {step.combine.value}"
    return head + (f" ({step.note})" if step.note else "")


def instruction_lines(own: RankProgram, shared: ClassProgram) -> Iterator[str]:
    """One line per instruction, in the order in which the rank runs them."""
    width = max((len(step.op.value) for step in own.instructions), default=0)
    for index, step in enumerate(own.instructions):
        yield f"{index:>4} {step.op.value:<{width}} {_instruction_text(step, own, shared)}".rstrip()


def _instruction_text(step: Instruction, own: RankProgram, shared: ClassProgram) -> str:
    parts = [shared.segments[step.segment].name] if step.segment >= 0 else []
    if step.mb >= 0:
        low, high = own.rows[step.mb]
        parts.append(f"micro-batch {step.mb}, rows {low}:{high}")
    if step.value >= 0:
        parts.append(f"v{step.value}")
    if step.slot >= 0:
        table = own.comms if step.op is Op.STEP_REDUCE else own.transfers
        parts.append(comm_text(table[step.slot]))
    if step.op is Op.GRAD_SYNC:
        parts.append(f"{sum(bucket.wave < 0 for bucket in own.grad_buckets)} buckets")
    if step.wave >= 0:
        buckets = [bucket for bucket in own.grad_buckets if bucket.wave == step.wave]
        parts.append(f"wave {step.wave}, {len(buckets)} buckets")
    if step.op is Op.GRAD_SCATTER:
        parts.append(f"{sum(count > 1 for count in own.times().values())} buckets")
    if step.op in (Op.PARAM_GATHER, Op.PARAM_DROP):
        parts.append(f"{len(own.param_buckets)} buckets")
    return "; ".join(parts) + (f" #{step.tag}" if step.tag >= 0 else "")


def _row_note(row: LocalRow, own: RankProgram) -> str:
    notes = [] if row.logical is None else [f"row {row.logical}"]
    if row.op == COMM and isinstance(row.args[1], int):
        notes.append(comm_text(own.comms[row.args[1]]))
    return ", ".join(notes)


def _input_text(item: SegmentInput) -> str:
    name = f" {item.name}" if item.kind in NAMED_INPUTS else ""
    return f"v{item.value.id}: {item.kind.value}{name}"


def _output_text(item: SegmentOutput) -> str:
    return f"{item.kind.value}{f' {item.name}' if item.name else ''} v{item.value.id}"


def program_text(program: Program) -> str:
    """Every rank's table, and each class program once, with the literals of its first rank."""
    lines: list[str] = []
    shown: set[str] = set()
    for own in program.ranks:
        place = f"device {own.device}, pipeline {own.pipeline}, stage {own.stage_text}"
        place += f", coordinate {own.coordinate}"
        lines.append(f"rank {own.rank}: class {own.class_name}, {place}")
        lines += instruction_lines(own, program.classes[own.class_name])
        if own.class_name not in shown:
            shown.add(own.class_name)
            lines.append(f"class {own.class_name}")
            for segment in program.classes[own.class_name].segments:
                lines += segment_lines(segment, own)
        lines.append("")
    return "\n".join(lines)
