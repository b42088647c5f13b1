"""ZeRO: every trained element is stored by one of its holders, and gradients are handed over on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ...program.program import ZERO_GRADS
from ..compile_state import Levelled, Shared, grown
from ..pass_chain import Pass
from ..texts.plan_text import ownership_text
from ..zero.scatter_points import scatter_points
from ..zero.zero import Ownership, Trained, share_out, units_of


@dataclass(frozen=True, slots=True)
class Zero(Pass[Levelled, Shared]):
    """How far it goes is part of the strategy; without it every holder stores what it holds."""

    name: ClassVar[str] = "zero"

    def run(self, state: Levelled) -> Shared:
        ownership = share_out(list(_trained(state))) if state.strategy.zero else None
        return grown(Shared, state, ownership=ownership, scatters=_scatters(state, ownership))

    def text(self, before: Levelled, after: Shared) -> str:
        return ownership_text(after.ownership, after.scatters)

    def problems(self, before: Levelled, after: Shared) -> Iterator[str]:
        """Every element has one owner."""
        if after.ownership is None:
            return
        for (name, number), cuts in after.ownership.cuts.items():
            part, kept = after.ownership.parts[name][number], sum(cut.size for cut in cuts.values())
            if kept != part.size or not set(cuts) <= set(part.holders):
                yield f"of {part.size} elements of {name} on {part.holders}, {kept} are owned by {[*cuts]}"


def _trained(state: Levelled) -> Iterator[Trained]:
    places = state.places
    units = units_of(places.gradients, state.inside)
    for name, layout in places.gradients.items():
        yield Trained(name, layout, units[name], *places.types(name))


def _scatters(state: Levelled, ownership: Ownership | None) -> list[frozenset[int]]:
    """Where gradients are handed over before the end of a step; nowhere below ZeRO-2."""
    counts = [len(rows) for rows in state.ranks.rows]
    if ownership is None or state.strategy.zero < ZERO_GRADS or not ownership.shared:
        return [frozenset()] * len(counts)
    return scatter_points(counts)
