"""Less memory for a strategy that does not fit, from what costs least time to what saves most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...strategy.strategy import PipelineSpec, Recompute, RecomputeKind, Strategy
from .batches import micro_batches


@dataclass(frozen=True, slots=True)
class Rung:
    """zero: at least this level. divided: so many times as many micro-batches. recompute: of all layers."""

    zero: int
    divided: int = 1
    recompute: RecomputeKind = RecomputeKind.NONE

    @property
    def name(self) -> str:
        """What it adds, in words."""
        parts = [f"ZeRO-{self.zero}" if self.zero else "", *_words(self)]
        return ", ".join(part for part in parts if part)


def _words(rung: Rung) -> Iterator[str]:
    if rung.divided > 1:
        yield f"micro-batches / {rung.divided}"
    if rung.recompute is not RecomputeKind.NONE:
        yield f"{rung.recompute.value} recomputation"


LADDER = (
    Rung(1),
    Rung(0, 4),
    Rung(1, 4),
    Rung(1, 4, RecomputeKind.SELECTIVE),
    Rung(3, 4),
    Rung(1, 16, RecomputeKind.FULL),
    Rung(3, 16, RecomputeKind.FULL),
    Rung(3, 1 << 16, RecomputeKind.FULL),
)
"""In the order of the time that they cost, as a rule; the last is the least memory that is known."""


def lighter(strategy: Strategy, rung: Rung) -> Strategy:
    """The strategy on a rung."""
    return replace(
        strategy,
        pipelines=tuple(_pipeline(pipeline, rung) for pipeline in strategy.pipelines),
        zero=max(strategy.zero, rung.zero),
    )


def _pipeline(pipeline: PipelineSpec, rung: Rung) -> PipelineSpec:
    count = len(pipeline.micro_batches) * rung.divided
    recompute = pipeline.recompute
    if rung.recompute is not RecomputeKind.NONE:
        recompute = (Recompute((0, pipeline.num_layers), rung.recompute),)
    return replace(pipeline, micro_batches=micro_batches(pipeline.batch_size, count), recompute=recompute)
