"""Which of the priced candidates is the plan."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hspmd_compiler.base.timeline import Span, SpanKind
from hspmd_compiler.cluster.calibration import Calibration, Fit
from hspmd_compiler.strategy.strategy import LayoutWish, PipelineSpec, StageSpec, Strategy
from hspmd_compiler.synthesizer.planner.candidates import PlanCandidate, PricedCandidate
from hspmd_compiler.synthesizer.planner.ranking import Spread, rank

STRATEGY = Strategy((PipelineSpec((StageSpec((0,), (0, 1)),), (1,)),))
EXCHANGED_S = 0.02
MEASURED = Spread(computed=0.03, exchanged=0.1)


def priced(
    name: str,
    step_s: float,
    exchanges: int,
    *,
    fits: bool = True,
    said: int = 0,
    exchanged_s: float = EXCHANGED_S,
) -> PricedCandidate:
    """As far as candidates are compared; of the step so much is exchanged, the rest computed."""
    phases = {SpanKind.FORWARD: step_s - exchanged_s, SpanKind.COLLECTIVE: exchanged_s, SpanKind.WAIT: 9.0}
    ranks = [SimpleNamespace(phases_s=phases, busy_s=step_s)]
    waits = [Span(0, 0, 0, SpanKind.WAIT, group=(0, 1)), Span(0, 0, 0, SpanKind.FORWARD)]
    meets = [Span(0, 0, 0, SpanKind.COLLECTIVE, group=(0, 1))] * exchanges
    timeline = SimpleNamespace(spans=[*waits, *meets])
    estimate = SimpleNamespace(step_s=step_s, misfits=() if fits else (0,), ranks=ranks, timeline=timeline)
    strategy = replace(STRATEGY, layouts=tuple(LayoutWish("x", f"S{dim}") for dim in range(said)))
    return PricedCandidate(PlanCandidate(name, strategy), cast(Any, estimate))


@pytest.mark.parametrize(
    ("others", "spread", "chosen"),
    [
        ([priced("DP-CP", 0.958, 3)], Spread(), "DP-CP"),  # 0.4 % above, and simpler
        ([priced("DP-CP", 0.958, 7)], Spread(), "searched"),
        ([priced("DP-CP", 0.970, 3)], Spread(), "searched"),
        ([priced("DP-EV", 0.957, 3), priced("TP 2", 0.956, 4)], Spread(), "DP-EV"),
        ([priced("said", 0.955, 3, said=1), priced("DP-CP", 0.956, 3)], Spread(), "DP-CP"),
        ([priced("DP-CP", 0.955, 3, fits=False)], Spread(), "searched"),
        # a tenth of what both exchange, and 3 % of what one computes more
        ([priced("DP-CP", 0.9580, 3)], MEASURED, "DP-CP"),
        ([priced("DP-CP", 0.9590, 3)], MEASURED, "searched"),
        ([priced("DP-CP", 0.9600, 3, exchanged_s=0.05)], MEASURED, "DP-CP"),
        ([priced("DP-CP", 0.9700, 3, exchanged_s=0.05)], MEASURED, "searched"),
    ],
)
def test_of_those_that_prices_cannot_tell_apart_the_simplest_is_the_plan(
    others: list[PricedCandidate], spread: Spread, chosen: str
) -> None:
    given = [priced("searched", 0.954, 5, said=2), *others]
    found = rank(given, spread)
    assert found.ranked[0].name == chosen
    assert len(found.ranked) == len(given)
    rest = [one.step_s for one in found.ranked[1:] if one.fits]
    assert rest == sorted(rest)
    assert bool(found.notes) == (chosen != "searched")


def test_why_the_plan_is_not_the_quickest_is_told() -> None:
    found = rank([priced("1 x 4, searched", 1.0, 5), priced("DP-CP", 1.004, 3)], Spread())
    assert found.notes == (
        "DP-CP and 1 x 4, searched are a tie: 0.40% of a step is between them, and prices are good for"
        " 0.50% here; the simpler one is the plan (exchanges of a step: 3 and 5)",
    )


def test_spread_is_that_of_the_fit_in_the_middle() -> None:
    fits = {name: Fit(0.0, spread=spread) for name, spread in (("a", 0.01), ("b", 0.02), ("c", 0.5))}
    operators = {"mm:float32": Fit(0.0, spread=0.03)}
    measured = Calibration("", "", "cpu", 1, operators, {}, fits, Fit(0.0), 0.0, 0, "async")
    assert Spread.of(measured) == Spread(0.03, 0.02)
    assert Spread.of(None) == Spread(0.0, 0.0)
