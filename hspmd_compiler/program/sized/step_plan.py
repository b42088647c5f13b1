"""What one step chooses: per pipeline, the sizes of its micro-batches; the same on every rank."""

from __future__ import annotations

from dataclasses import dataclass

from .sizes import MicroSizes


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Per pipeline, its micro-batches in order; a pipeline may have none."""

    pipelines: tuple[tuple[MicroSizes, ...], ...]

    @property
    def samples(self) -> int:
        """Samples of the whole step; the members of a context-parallel group count once, by their first."""
        return sum(micro.samples for pipeline in self.pipelines for micro in pipeline)
