"""For which sizes a program was proved, and what all of its ranks agree on."""

from __future__ import annotations

from dataclasses import dataclass

from ...base.pipeline_schedule import ScheduleKind
from .sizes import Count
from .step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Sizes of micro-batches, [low, high] of `unit`, that the program runs.

    unit: TOKENS: every micro-batch is a row of packed tokens; SAMPLES: so many samples. probes: the steps for
    which it was compiled. degrees: into how many pieces stages cut the tokens. stages: of each pipeline.
    groups: pipelines that are the members of a context-parallel group, in order.
    """

    unit: Count
    low: int
    high: int
    probes: tuple[StepPlan, ...]
    stages: tuple[int, ...]
    schedule: ScheduleKind
    degrees: tuple[int, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()

    def group_of(self, pipeline: int) -> tuple[int, ...]:
        """The pipelines that a pipeline's micro-batches meet; itself alone where it is in no group."""
        return next((group for group in self.groups if pipeline in group), (pipeline,))

    @property
    def text(self) -> str:
        """The range, and at which size numbers of a page stand."""
        unit = "tokens" if self.unit is Count.TOKENS else "samples"
        first = self.probes[0].pipelines[0][0]
        shown = first.tokens if self.unit is Count.TOKENS else first.samples
        return f"{self.low:,} to {self.high:,} {unit} a micro-batch; figures are those of {shown} {unit}"
