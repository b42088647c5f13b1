"""Whether a segment can be run: operators from the allow-list, values defined before they are used."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ..errors import ArtifactError
from .lifetimes import row_reads
from .program import COMM, COMM_START, GETITEM, OF_BATCH, InputKind, LocalRow, OutputKind, Segment, Value
from .quick.table import RULES

NAMED_INPUTS = frozenset({InputKind.PARAM, InputKind.STORED, InputKind.DATA, InputKind.DOCUMENTS})
NAMED_OUTPUTS = frozenset({OutputKind.GRAD, OutputKind.BUFFER})


def problems_of_segment(where: str, segment: Segment, data: Collection[str]) -> Iterator[tuple[str, str]]:
    """(place, problem) for everything in a segment that could not run on any rank."""
    defined: set[int] = set()
    for item in segment.inputs:
        if item.value.id in defined:
            yield where, f"input v{item.value.id} is there twice"
        if item.kind in OF_BATCH and item.name not in data:
            yield where, f"input v{item.value.id}: no batch entry {item.name!r}"
        if (item.kind in NAMED_INPUTS) != bool(item.name):
            yield (
                where,
                f"input v{item.value.id}: a name goes with {_names(NAMED_INPUTS)} and only with these",
            )
        defined.add(item.value.id)
    yield from _unfinished(where, segment)
    for row in segment.rows:
        yield from ((f"{where}, v{row.out.id}", text) for text in _row_problems(row, defined))
        defined.add(row.out.id)
    for made in segment.outputs:
        if made.value.id not in defined:
            yield where, f"output v{made.value.id} is never computed"
        if (made.kind in NAMED_OUTPUTS) != bool(made.name):
            yield (
                where,
                f"output v{made.value.id}: a name goes with {_names(NAMED_OUTPUTS)} and only with these",
            )


def comm_slots(segment: Segment) -> list[int]:
    """The communication slots that the segment uses, in order."""
    calls = [row.args for row in segment.rows if row.op == COMM]
    return [args[1] for args in calls if len(args) > 1 and isinstance(args[1], int)]


def counted_slots(segment: Segment) -> dict[int, bool]:
    """Whether the communication slots that the segment uses are given counts."""
    calls = [row.args for row in segment.rows if row.op == COMM]
    return {args[1]: len(args) > 2 for args in calls if len(args) > 1 and isinstance(args[1], int)}


def _unfinished(where: str, segment: Segment) -> Iterator[tuple[str, str]]:
    """Exchanges that start, and that no `comm` of the same slot ends before the slot starts again."""
    started: dict[object, Value] = {}
    for row in segment.rows:
        if row.op not in (COMM, COMM_START) or len(row.args) < 2:
            continue
        if row.op == COMM_START and row.args[1] not in started:
            started[row.args[1]] = row.out
        elif row.op == COMM_START or started.pop(row.args[1], row.args[0]) != row.args[0]:
            yield f"{where}, v{row.out.id}", f"slot {row.args[1]} has started with another value"
    for slot, value in started.items():
        yield f"{where}, v{value.id}", f"slot {slot} starts, and nothing ends it"


def _row_problems(row: LocalRow, defined: set[int]) -> Iterator[str]:
    if row.out.id in defined:
        yield "is defined twice"
    for value in row_reads(row):
        if value not in defined:
            yield f"uses v{value}, which is not computed before it"
    if row.op in (COMM, COMM_START):
        counts = row.args[2:] if row.op == COMM else ()
        plain = row.args[: len(row.args) - len(counts)]
        if len(plain) != 2 or not isinstance(plain[0], Value) or type(plain[1]) is not int:
            yield f"{row.op} takes one value and one slot"
        if len(counts) > 1 or not all(isinstance(each, Value) for each in counts):
            yield f"{row.op} takes one value of counts behind its slot, or none"
    elif not is_known(row.op):
        yield f"operator {row.op!r} is not one that a program may use"


def is_known(op: str) -> bool:
    """Whether `op` is on the allow-list: getitem, comm, a functional aten overload, or a kernel of ours."""
    if op in (GETITEM, COMM) or op in RULES:
        return True
    from .kernels.kernels import kernel  # late, with torch: a price of common operators needs none

    try:
        kernel(op)
    except ArtifactError:
        return False
    return True


def _names(kinds: Collection[InputKind] | Collection[OutputKind]) -> str:
    return " and ".join(sorted(kind.value for kind in kinds))
