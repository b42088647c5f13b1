"""For which sizes a program was proved, and what all of its ranks agree on."""

from __future__ import annotations

from dataclasses import dataclass

from ...base.context import ContextCut
from ...base.pipeline_schedule import ScheduleKind
from .sizes import Count
from .step_plan import StepPlan, whole_row


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Sizes of micro-batches, [low, high] of `unit`, that the program runs.

    unit: TOKENS: every micro-batch is a row of packed tokens; SAMPLES: so many samples. probes: the steps for
    which it was compiled. degrees: into how many pieces stages cut the tokens. stages: of each pipeline.
    groups: pipelines that are the members of a context-parallel group, in order. shares: rows, or samples, of
    a step that each pipeline takes where no plan says it, a member its part of the rows of its group; none:
    as in the first probe.
    """

    unit: Count
    low: int
    high: int
    probes: tuple[StepPlan, ...]
    stages: tuple[int, ...]
    schedule: ScheduleKind
    degrees: tuple[int, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    shares: tuple[float, ...] = ()

    def group_of(self, pipeline: int) -> tuple[int, ...]:
        """The pipelines that a pipeline's micro-batches meet; itself alone where it is in no group."""
        return next((group for group in self.groups if pipeline in group), (pipeline,))

    def pieces_of(self, pipeline: int) -> int:
        """In how many pieces pipelines share the rows of this one; 0 where it has them for itself."""
        members = len(self.group_of(pipeline))
        rings = (micro.ring for probe in self.probes[:1] for micro in probe.pipelines[pipeline][:1])
        return max([members, *map(len, rings)]) if members > 1 else 0

    def cut_of(self, pipeline: int) -> ContextCut:
        """Which tokens of a row the members of a pipeline's group have."""
        once = self.pieces_of(pipeline) <= len(self.group_of(pipeline))
        return ContextCut.CONTIGUOUS if once else ContextCut.BALANCED

    @property
    def text(self) -> str:
        """The range, and at which size numbers of a page stand."""
        unit = "tokens" if self.unit is Count.TOKENS else "samples"
        first = self.probes[0].pipelines[0][0]
        shown = whole_row(first) if self.unit is Count.TOKENS else first.samples
        return f"{self.low:,} to {self.high:,} {unit} a micro-batch; figures are those of {shown} {unit}"
