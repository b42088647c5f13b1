"""Rows that neither the loss, a gradient nor a buffer needs go; the others are cut into stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ..compile_state import Deduced, Live, grown
from ..liveness import LivePipeline, live_pipeline
from ..pass_chain import Pass
from ..row_checks import live_problems
from ..texts.live_text import live_text


@dataclass(frozen=True, slots=True)
class Liveness(Pass[Deduced, Live]):
    """Pipelines that share their rows share what is needed of them."""

    name: ClassVar[str] = "liveness"

    def run(self, state: Deduced) -> Live:
        known: dict[int, LivePipeline] = {}
        for number, graph in enumerate(state.pipelines):
            if id(graph.rows) not in known:
                known[id(graph.rows)] = live_pipeline(graph, len(state.ranks.pipeline(number).stages))
        return grown(Live, state, live=[known[id(graph.rows)] for graph in state.pipelines])

    def text(self, before: Deduced, after: Live) -> str:
        return live_text(after.pipelines, after.live)

    def problems(self, before: Deduced, after: Live) -> Iterator[str]:
        return live_problems(after.pipelines, (), after.live)
