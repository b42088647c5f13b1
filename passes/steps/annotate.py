"""How each parameter lies on the devices of a strategy, and what each pipeline starts from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from ...strategy.strategy import Strategy
from ..annotate import annotate, batch_sets, parameter_text
from ..compile_state import Annotated, Traced
from ..deduction.placement import GraphFacts
from ..pass_chain import Pass


@dataclass(frozen=True, slots=True)
class Annotate(Pass[Traced, Annotated]):
    """From here on a program is that of one strategy."""

    name: ClassVar[str] = "annotate"

    strategy: Strategy

    def run(self, state: Traced) -> Annotated:
        facts = GraphFacts.of(state.graph)
        layouts, placements = annotate(state.graph, self.strategy, facts)
        return Annotated(state.graph, self.strategy, layouts, placements, facts)

    def text(self, before: Traced, after: Annotated) -> str:
        return parameter_text(after.layouts)

    def problems(self, before: Traced, after: Annotated) -> Iterator[str]:
        """Every sample of a step is in one micro-batch, and every pipeline has its own."""
        ends = [bounds for held in batch_sets(self.strategy) for bounds in held]
        samples = sorted(ends)
        if any(low != high for (_, high), (low, _) in pairwise(samples)):
            yield f"micro-batches {samples} do not lie side by side"
        if sum(high - low for low, high in samples) != self.strategy.global_batch:
            yield f"micro-batches {samples} are not the {self.strategy.global_batch} samples of a step"
        if len(after.placements) != len(self.strategy.pipelines):
            yield f"{len(after.placements)} placements for {len(self.strategy.pipelines)} pipelines"
