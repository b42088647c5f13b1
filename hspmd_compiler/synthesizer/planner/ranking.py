"""Which of the priced candidates is the plan: the quickest, but of those that prices can't tell apart the
simplest.

What two candidates compute is much the same work, so that an error of the operators' prices is in both of
them; that of their communication is in each its own. Both are as large as a calibration's fits deviate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from ...base.timeline import SpanKind
from ...cluster.calibration import Calibration, Fit
from ...cost_models.estimate import Estimate
from .candidates import PricedCandidate

AS_QUICK = 0.005
"""Of a step: prices that differ by less tell nothing, also where no spread was measured."""
COMPUTED = (SpanKind.FORWARD, SpanKind.BACKWARD, SpanKind.UPDATE)
UNTOLD = (SpanKind.WAIT, SpanKind.OTHER)


class Simplicity(NamedTuple):
    """What a candidate asks for, less is simpler. exchanges: of the rank with the most, in a step. said: what
    its strategy says of layouts beyond what operators do by default."""

    exchanges: int
    said: int


@dataclass(frozen=True, slots=True)
class Spread:
    """How far measured seconds are from their fits, relative: of operators, and of exchanges."""

    computed: float = 0.0
    exchanged: float = 0.0

    @classmethod
    def of(cls, calibration: Calibration | None) -> Spread:
        """The fit in the middle; 0 where nothing was measured."""
        if calibration is None:
            return cls()
        exchanges = (*calibration.collectives.values(), *calibration.exchange.values())
        return cls(_middle(calibration.operators.values()), _middle(exchanges))

    def doubt_s(self, one: Estimate, other: Estimate) -> float:
        """Seconds by which prices of two steps may differ for nothing."""
        (computed, exchanged), (others, also) = _busiest_s(one), _busiest_s(other)
        doubt_s = self.computed * abs(computed - others) + self.exchanged * (exchanged + also)
        return max(doubt_s, AS_QUICK * min(one.step_s, other.step_s))


def _middle(fits: Iterable[Fit]) -> float:
    return median([fit.spread for fit in fits] or [0.0])


def _busiest_s(step: Estimate) -> tuple[float, float]:
    """Seconds that the rank with the most to do computes, and exchanges."""
    phases_s = max(step.ranks, key=lambda rank: rank.busy_s).phases_s
    computed = sum(phases_s.get(kind, 0.0) for kind in COMPUTED)
    untold = sum(phases_s.get(kind, 0.0) for kind in UNTOLD)
    return computed, sum(phases_s.values()) - computed - untold


@dataclass(frozen=True, slots=True)
class Ranking:
    """ranked: the plan, then all others, those that fit first, the quickest first. quickest: what the plan is
    taken for, though it is priced lower; None where the plan is the quickest. doubt_s: between these two."""

    ranked: tuple[PricedCandidate, ...]
    quickest: PricedCandidate | None = None
    doubt_s: float = 0.0

    @property
    def notes(self) -> tuple[str, ...]:
        """Why the plan is not the quickest."""
        if self.quickest is None:
            return ()
        plan, other = self.ranked[0], self.quickest
        apart, doubt = ((plan.step_s - other.step_s) / other.step_s, self.doubt_s / other.step_s)
        counts = simplicity(plan).exchanges, simplicity(other).exchanges
        return (
            f"{plan.name} and {other.name} are a tie: {apart:.2%} of a step is between them, and prices are"
            f" good for {doubt:.2%} here; the simpler one is the plan (exchanges of a step: {counts[0]} and"
            f" {counts[1]})",
        )


def rank(priced: Iterable[PricedCandidate], spread: Spread) -> Ranking:
    """The plan is the simplest of those that fit and are as quick as the quickest, as far as prices tell."""
    ranked = sorted(priced, key=lambda one: (not one.fits, one.step_s))
    quickest = ranked[0]
    tied = _tied(quickest, ranked, spread)
    plan = min(tied, key=lambda one: (*simplicity(one), one.step_s), default=quickest)
    if plan is quickest or simplicity(plan) == simplicity(quickest):
        return Ranking(tuple(ranked))
    ranked.remove(plan)
    assert plan.estimate is not None and quickest.estimate is not None, "what fits has a price"
    return Ranking((plan, *ranked), quickest, spread.doubt_s(plan.estimate, quickest.estimate))


def _tied(
    quickest: PricedCandidate, ranked: Sequence[PricedCandidate], spread: Spread
) -> list[PricedCandidate]:
    best = quickest.estimate
    if best is None or not quickest.fits:
        return []
    return [
        one
        for one in ranked
        if one.fits
        and one.estimate is not None
        and one.step_s - quickest.step_s <= spread.doubt_s(one.estimate, best)
    ]


def simplicity(one: PricedCandidate) -> Simplicity:
    """Of a candidate that was priced."""
    counts: dict[int, int] = {}
    if one.estimate is not None:
        for span in one.estimate.timeline.spans:
            if span.group and span.kind is not SpanKind.WAIT:
                counts[span.rank] = counts.get(span.rank, 0) + 1
    strategy = one.strategy
    said = {(item.split, item.duplicate, item.tp, item.shares, item.gradient) for item in strategy.overrides}
    wishes = {wish.to for wish in strategy.layouts}
    return Simplicity(max(counts.values(), default=0), len(said) + len(wishes) + (strategy.zero > 0))
