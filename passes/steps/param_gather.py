"""ZeRO-3: parameters that all pipelines can gather in one order are gathered where they are used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ...ir.annotated import GATHER
from ...program.program import ZERO_PARAMS
from ..compile_state import Gathered, Live, grown
from ..param_places import ParamPlaces
from ..pass_chain import Pass
from ..row_checks import live_problems
from ..texts.plan_text import places_text
from ..zero.param_gather import NAME, gathered_inside, with_gathers


@dataclass(frozen=True, slots=True)
class ParamGather(Pass[Live, Gathered]):
    """Finds where parameters lie, whatever the strategy does with them."""

    name: ClassVar[str] = "param_gather"

    def run(self, state: Live) -> Gathered:
        places = ParamPlaces(state.graph, state.pipelines, state.ranks)
        live = list(state.live)
        inside: frozenset[str] = frozenset()
        if state.strategy.zero >= ZERO_PARAMS:
            inside = gathered_inside(state.strategy, state.pipelines, places.shared())
        if inside:
            stored = {
                name: info.stored for name, info in state.graph.params.items() if info.stored is not None
            }
            gathered = with_gathers(live, state.pipelines, inside, stored)
            live, inside = (live, frozenset()) if gathered is None else (gathered, inside)
        return grown(Gathered, replace(state, live=live), places=places, inside=inside)

    def text(self, before: Live, after: Gathered) -> str:
        return places_text(after.places, after.inside)

    def problems(self, before: Live, after: Gathered) -> Iterator[str]:
        """All pipelines gather the same parameters, forward and backward."""
        yield from live_problems(after.pipelines, before.live, after.live)
        for number, live in enumerate(after.live if after.inside else ()):
            rows = [row for stage in live.stages for row in stage.forward if row.op == GATHER]
            gathered = {str(row.kwargs[NAME]) for row in rows}
            if gathered != after.inside:
                yield f"pipeline {number} does not gather {sorted(after.inside ^ gathered)}"
