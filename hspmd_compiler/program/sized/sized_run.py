"""A rank's program for the micro-batches of a step: what `run_step` takes, without a program per size.

Code is generated once. A step that has other numbers of micro-batches than those before makes its
instructions from the rank's template; what each of them reads last follows from the template alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from torch import Tensor

from ...errors import InternalError
from ..codegen import generate
from ..execute import RankPlan
from ..gradients.homes import homes_of
from ..lifetimes import fresh_by_segment, last_pieces, last_reads
from ..messages.early_receives import early_receives
from ..program import Instruction, Op, Program, RankProgram, SizedRank
from ..requests import SegmentRun
from .answers import with_overs
from .filled_tables import FilledTables
from .recent import Recent
from .shared_rows import own_pieces
from .step_plan import StepPlan, rows_of
from .template import step_instructions

MOST_COUNTS = 64
"""Distinct numbers of micro-batches of which a rank keeps the instructions."""
Done: TypeAlias = tuple[Op, int, int, int]
"""What an instruction does, of any micro-batch."""


@dataclass(frozen=True, slots=True)
class _OfAnyMicro:
    """Values that are kept, whatever the micro-batch."""

    values: frozenset[int]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, tuple) and key[1] in self.values


class SizedRun:
    """Of one rank: the plan of each step, and the segments that it runs."""

    def __init__(self, program: Program, own: RankProgram, device: str = "cpu", starts: bool = False) -> None:
        if program.sizes is None or own.sized is None:
            raise InternalError("a program of one size is run as it is")
        shared = program.classes[own.class_name]
        codes = [generate(segment, own.literals, device, starts) for segment in shared.segments]
        self._sizes, self._own, self._inputs = program.sizes, own, tuple(program.inputs)
        self._functions = [code.function() for code in codes]
        self._tables = FilledTables(own, [code.sizes for code in codes])
        self._last = _last_of_template(own.sized, program, own)
        self._answers = dict(own.sized.answers)
        self._by_counts: Recent[tuple[int, ...], RankPlan] = Recent(MOST_COUNTS)
        kept = frozenset(value for values in self._last.values() for value in values)
        self._plan = RankPlan(
            own,
            shared,
            [],
            _OfAnyMicro(kept),
            last_pieces(own.grad_buckets),
            fresh_by_segment(shared),
            {shard.name: shard for shard in own.shards},
            own.scattered,
            self._tables,
            homes=homes_of(own),
        )

    def plan_for(self, plan: StepPlan) -> RankPlan:
        """The rank's program of a step; what it communicates is that of this step until the next is asked."""
        pipeline = self._own.pipeline
        micros = plan.micros(pipeline, self._sizes.unit)
        self._tables.choose(micros, plan.total(self._sizes.unit))
        is_told = self._tables.moves_all()
        key = (*plan.counts, int(is_told))
        made = self._by_counts.get(key, lambda: self._of_counts(plan.counts, is_told))
        rows = [rows_of(micro, self._sizes.unit) for micro in micros]
        pieces = own_pieces(self._sizes, pipeline, micros, self._inputs)
        return replace(made, program=replace(made.program, rows=rows, pieces=pieces))

    def start(self, segment: int, mb: int, inputs: list[Tensor], owned: list[bool]) -> SegmentRun[Tensor]:
        """See SegmentRunner."""
        return self._functions[segment](*self.arguments(segment, mb), *inputs)

    def arguments(self, segment: int, mb: int) -> tuple[int, ...]:
        """The sizes that a segment takes first, of a micro-batch of the step."""
        return self._tables.arguments(segment, mb)

    def _of_counts(self, counts: tuple[int, ...], is_told: bool) -> RankPlan:
        """is_told: RECVs tell which sends are over."""
        instructions = step_instructions(self._own, self._sizes, counts)
        if is_told:
            instructions = with_overs(instructions, self._answers, max(counts))
        releases = [self._last.get(_done(each), frozenset()) for each in instructions]
        early = early_receives(instructions, self._own.receives_ahead)
        program = replace(self._own, instructions=instructions)
        return replace(self._plan, program=program, releases=releases, early=early)


def _last_of_template(template: SizedRank, program: Program, own: RankProgram) -> dict[Done, frozenset[int]]:
    """What each instruction of a micro-batch is the last to read: micro-batches share no value."""
    counts = [each for each in template.counts if each.op is Op.STEP_COMPUTE]
    one = [*counts, *template.forward, *template.backward, *template.weights]
    found = last_reads(one, program.classes[own.class_name])
    return {_done(each): values for each, values in zip(one, found, strict=True)}


def _done(each: Instruction) -> Done:
    return each.op, each.segment, each.value, each.slot
