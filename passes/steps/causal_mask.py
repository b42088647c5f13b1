"""Constant attention masks become the kernels' own flags."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ...ir.printer import format_graph
from ..causal_mask import retarget_masks
from ..compile_state import Traced
from ..pass_chain import Pass
from ..row_checks import graph_problems


@dataclass(frozen=True, slots=True)
class CausalMask(Pass[Traced, Traced]):
    """A mask that is not the causal one, or reads a buffer, stays."""

    name: ClassVar[str] = "causal_mask"

    def run(self, state: Traced) -> Traced:
        return replace(state, graph=retarget_masks(state.graph))

    def text(self, before: Traced, after: Traced) -> str:
        return format_graph(after.graph)

    def problems(self, before: Traced, after: Traced) -> Iterator[str]:
        return iter(()) if after.graph is before.graph else graph_problems(after.graph)
