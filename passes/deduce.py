"""How every value lies, by the rules of its operator; where producer and consumer differ, communication."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..base.comm_plan import CostModel
from .compile_state import Annotated, Deduced
from .deduction.deduce_all import deduce_all
from .lower.strategy_ranks import StrategyRanks
from .pass_chain import Pass
from .row_checks import deduced_problems
from .texts.annotated_text import annotated_text


@dataclass(frozen=True, slots=True)
class Deduce(Pass[Annotated, Deduced]):
    """Pipelines of one structure are deduced once. cost: what a dump prices moves by."""

    cost: CostModel | None = None

    def run(self, state: Annotated) -> Deduced:
        pipelines = deduce_all(state.graph, state.strategy, state.placements, state.facts)
        return Deduced(state.graph, StrategyRanks(state.strategy), pipelines)

    def text(self, before: Annotated, after: Deduced) -> str:
        return annotated_text(after.graph, after.strategy, after.pipelines, self.cost)

    def problems(self, before: Annotated, after: Deduced) -> Iterator[str]:
        distinct = {id(graph.rows): graph for graph in after.pipelines}
        for graph in distinct.values():
            yield from (f"pipeline {graph.pipeline}: {text}" for text in deduced_problems(graph))
