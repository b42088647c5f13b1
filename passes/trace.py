"""The training step of a model on one device, as a graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..ir.printer import format_graph
from ..options import Capture, Precision
from ..trace.blocks.trace_step import trace_step
from .compile_state import Example, Traced
from .pass_chain import Pass
from .row_checks import graph_problems


@dataclass(frozen=True, slots=True)
class Trace(Pass[Example, Traced]):
    """capture: how much of the model is traced. precision: what it computes in. anchors: see `trace_step`."""

    capture: Capture = Capture.AUTO
    precision: Precision = Precision.MODEL
    anchors: tuple[str, ...] | None = None

    def run(self, state: Example) -> Traced:
        found = trace_step(
            state.model,
            state.inputs,
            batch=state.batch,
            capture=self.capture,
            precision=self.precision,
            anchors=self.anchors,
        )
        return Traced(found.graph, found.how)

    def text(self, before: Example, after: Traced) -> str:
        return format_graph(after.graph)

    def problems(self, before: Example, after: Traced) -> Iterator[str]:
        return graph_problems(after.graph)
