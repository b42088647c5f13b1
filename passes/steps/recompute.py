"""Values that layers do not keep are made again where backward first needs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ...strategy.strategy import Recompute as Range
from ..compile_state import Live
from ..liveness import LivePipeline
from ..pass_chain import Pass
from ..recompute import recompute
from ..row_checks import live_problems
from ..texts.live_text import changes_text


@dataclass(frozen=True, slots=True)
class RecomputePass(Pass[Live, Live]):
    """Which layers do so is part of the strategy."""

    name: ClassVar[str] = "recompute"

    def run(self, state: Live) -> Live:
        known: dict[tuple[int, tuple[Range, ...]], LivePipeline] = {}
        live = []
        for number, (pipeline, graph) in enumerate(zip(state.live, state.pipelines, strict=True)):
            spec = state.ranks.pipeline(number)
            key = (id(pipeline), spec.recompute)
            if key not in known:
                known[key] = recompute(pipeline, graph, state.graph, spec)
            live.append(known[key])
        return replace(state, live=live)

    def text(self, before: Live, after: Live) -> str:
        return changes_text(before.live, after.live)

    def problems(self, before: Live, after: Live) -> Iterator[str]:
        return live_problems(after.pipelines, before.live, after.live)
