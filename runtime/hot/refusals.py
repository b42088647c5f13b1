"""What keeps a model from being run in parts: its step is then no sum over parts of the batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import cast

from ...base.comm_plan import Interval
from ...errors import RunError
from ...program.literals import resolve
from ...program.program import ClassProgram, Op, OutputKind, RankProgram, Segment
from .parts import WeighedPart

RANDOM = ("hspmd.random_mask", "hspmd.random_numbers")
PARTS = 3
"""The place among their arguments of the factors of the whole that are drawn."""
STATISTICS = ("hspmd.channel_sum", "hspmd.channel_squares")
"""Of batch norm in training mode."""
PASSES = (Op.FORWARD, Op.BACKWARD, Op.WEIGHTS)

PartRefusal = tuple[str, str]
DrawnParts = tuple[tuple[int, tuple[Interval, ...], int], ...]
"""Those factors, as `counter_random.FactorPart` has them."""


def reasons(own: RankProgram, shared: ClassProgram) -> list[PartRefusal]:
    """Why a rank's program can't be run on a part of a batch, as (what, why)."""
    used = {each.segment for each in own.instructions if each.op in PASSES}
    sized = [] if own.sized is None else [("sizes of micro-batches", "each step chooses them, by its plan")]
    return sized + list(dict.fromkeys(_reasons(shared.segments[index] for index in sorted(used))))


def _reasons(segments: Iterable[Segment]) -> Iterator[PartRefusal]:
    for segment in segments:
        if any(row.op in STATISTICS for row in segment.rows):
            yield "batch norm", "the values of a sample follow from all samples of the batch"
        for output in segment.outputs:
            if output.kind is OutputKind.BUFFER:
                yield output.name, "a buffer that each step changes, by the batch it has"
            if output.kind is OutputKind.STEP:
                yield "a sum over the batch", "of what the model computes, not of its inputs alone"


def refuse(found: Iterable[PartRefusal]) -> None:
    """One RunError for all reasons of all ranks."""
    details = sorted(set(found))
    if details:
        raise RunError(
            "the model can't be run in parts of a batch",
            details=details,
            rule="loss and gradients of a batch are weighted sums of those of its parts",
            fix="take steps of one strategy, engine.step; or put batch norm into evaluation mode",
        )


def draws_from_the_first(own: RankProgram, shared: ClassProgram, batch: int) -> bool:
    """Whether random numbers may be of samples, and are those of the first ones wherever the batch begins.

    Where one micro-batch has the whole batch nothing in a program tells which dim the samples lie along.
    """
    if own.rows != [(0, batch)]:
        return False
    rows = (row for segment in shared.segments for row in segment.rows if row.op in RANDOM)
    drawn = (cast(DrawnParts, resolve(row.args[PARTS], own.literals)) for row in rows)
    return any(size % batch == 0 for parts in drawn for size, _, _ in parts)


def check_places(parts: Sequence[WeighedPart], placeless: Collection[str]) -> None:
    """RunError where a part behind others would draw what the first samples of the step draw."""
    wrong = {part.strategy: part.first for part in parts if part.first and part.strategy in placeless}
    if wrong:
        raise RunError(
            "parts of the step would draw the random numbers of its first samples",
            details=[(name, f"a part behind {first} samples") for name, first in wrong.items()],
            rule="dropout draws by the place of a sample in the step, of which a program knows nothing whose"
            " whole batch is one micro-batch",
            fix="compile these with two micro-batches or more, or let each have the first part only",
        )


def sums_of(shared: ClassProgram) -> frozenset[int]:
    """Step values: sums over the batch, by which a mean is divided."""
    outputs = (output for segment in shared.segments for output in segment.outputs)
    return frozenset(output.value.id for output in outputs if output.kind is OutputKind.STEP)
