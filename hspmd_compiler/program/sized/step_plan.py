"""What one step chooses: per pipeline, the sizes of its micro-batches; the same on every rank."""

from __future__ import annotations

from dataclasses import dataclass

from .sizes import Count, MicroSizes


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Per pipeline, its micro-batches in order; a pipeline may have none."""

    pipelines: tuple[tuple[MicroSizes, ...], ...]

    def total(self, unit: Count) -> int:
        """What `Count.ALL` counts. unit: what varies, TOKENS or SAMPLES.

        Members of a context-parallel group have the tokens of a row in pieces, so that all of them add up.
        """
        every = [micro for pipeline in self.pipelines for micro in pipeline]
        return sum(micro.tokens if unit is Count.TOKENS else micro.samples for micro in every)

    @property
    def counts(self) -> tuple[int, ...]:
        """Micro-batches that each pipeline runs: at least one, so that all have what is added up."""
        return tuple(max(len(pipeline), 1) for pipeline in self.pipelines)

    def micros(self, pipeline: int, unit: Count) -> tuple[MicroSizes, ...]:
        """What a pipeline runs; one with nothing to do runs one micro-batch of nothing."""
        return self.pipelines[pipeline] or (MicroSizes(1 if unit is Count.TOKENS else 0, 0),)

    def rows(self, unit: Count) -> list[tuple[int, int]]:
        """Where the micro-batches of all pipelines lie in the step, in order; empty ones left out."""
        every = {rows_of(micro, unit) for pipeline in self.pipelines for micro in pipeline}
        return sorted(low_high for low_high in every if low_high[0] < low_high[1])


def rows_of(micro: MicroSizes, unit: Count) -> tuple[int, int]:
    """Where a micro-batch lies in the step's tokens, or samples: [low, high); all of a row that is shared."""
    return micro.first, micro.first + (whole_row(micro) if unit is Count.TOKENS else micro.samples)


def whole_row(micro: MicroSizes) -> int:
    """Tokens of the row that a micro-batch is, or has a piece of."""
    return sum(micro.ring) if micro.ring else micro.tokens


def planned_sizes(plan: StepPlan, unit: Count) -> str:
    """The sizes of a step's micro-batches, by pipeline."""
    return " | ".join(
        ", ".join(_micro_text(micro, unit) for micro in micros) or "none" for micros in plan.pipelines
    )


def _micro_text(micro: MicroSizes, unit: Count) -> str:
    if unit is Count.SAMPLES:
        return str(micro.samples)
    cuts = "; ".join("+".join(map(str, cut)) for cut in micro.cuts)
    own = f"{micro.tokens} of {sum(micro.ring)}" if micro.ring else str(micro.tokens)
    return f"{own} ({cuts})" if cuts else own
