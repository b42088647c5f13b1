"""Which of the priced candidates is the plan."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.synthesizer.planner.candidates import PlanCandidate, PricedCandidate, quickest_first

STRATEGY = Strategy((PipelineSpec((StageSpec((0,), (0, 1)),), (1,)),))


def priced(name: str, step_s: float, *, searched: bool, fits: bool = True) -> PricedCandidate:
    """As far as candidates are compared."""
    estimate = SimpleNamespace(step_s=step_s, misfits=() if fits else (0,))
    found = cast(Any, object()) if searched else None
    return PricedCandidate(PlanCandidate(name, STRATEGY, found), cast(Any, estimate))


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ([priced("DP-CP", 0.958, searched=False)], "DP-CP"),  # 0.4 % above the searched one
        ([priced("DP-CP", 0.970, searched=False)], "searched"),
        ([priced("DP-EV", 0.957, searched=False), priced("TP 2", 0.956, searched=False)], "TP 2"),
        ([priced("DP-CP", 0.955, searched=False, fits=False)], "searched"),
        ([priced("1 x 2, searched", 0.953, searched=True)], "1 x 2, searched"),
    ],
)
def test_what_no_search_made_is_taken_where_it_is_as_quick(
    others: list[PricedCandidate], chosen: str
) -> None:
    ranked = quickest_first([priced("searched", 0.954, searched=True), *others])
    assert ranked[0].name == chosen
    assert len(ranked) == 1 + len(others)
    rest = [one.step_s for one in ranked[1:] if one.fits]
    assert rest == sorted(rest)
