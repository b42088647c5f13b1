"""Strategies with their prices: each is compiled as a whole and priced as `hspmd estimate` does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ...base.log import warnings_kept
from ...cost_models.estimate import Estimate, estimate
from ...cost_models.steps.figures import cost_of_ranks
from ...errors import HspmdError, InternalError
from ...ir.graph import LogicalGraph
from ...options import OptimizerConfig
from ...passes.compile_state import Traced
from ...passes.pipeline import planning
from ...strategy.check import check
from ...strategy.strategy import Strategy
from ..value_types import FoundProgram
from .planned_devices import PlannedDevices


@dataclass(frozen=True, slots=True)
class PlanCandidate:
    """A strategy to be priced. name: for people. found: the program that it was realised from, if any.

    notes: what to know of it.
    """

    name: str
    strategy: Strategy
    found: FoundProgram | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PricedCandidate:
    """A candidate with the estimate of its compiled program, or why there is none. warnings: compiling."""

    candidate: PlanCandidate
    estimate: Estimate | None
    refused: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def strategy(self) -> Strategy:
        return self.candidate.strategy

    @property
    def step_s(self) -> float:
        """Seconds of a step; infinite where it can't be compiled."""
        return float("inf") if self.estimate is None else self.estimate.step_s

    @property
    def fits(self) -> bool:
        """Whether it compiles, and all ranks have the memory."""
        return self.estimate is not None and not self.estimate.misfits

    @property
    def holds_samples(self) -> bool:
        """Whether the samples of a step alone fit, which no saving of memory makes fewer."""
        if self.estimate is None:
            return False
        return all(one.memory.peak.batch <= one.usable_bytes for one in self.estimate.ranks)

    @property
    def excess_bytes(self) -> float:
        """What the rank that is worst off lacks; below 0 where all have enough."""
        if self.estimate is None:
            return float("inf")
        return max(one.memory.peak.total - one.usable_bytes for one in self.estimate.ranks)


@dataclass
class CandidatePricer:
    """Prices candidates of one graph on one cluster; equal strategies once."""

    graph: LogicalGraph
    devices: PlannedDevices
    optimizer: OptimizerConfig
    _known: dict[Strategy, PricedCandidate] = field(default_factory=dict)

    def price(self, candidate: PlanCandidate) -> PricedCandidate:
        """The candidate compiled and priced; a refusal of ours is kept as a reason."""
        key = replace(candidate.strategy, name="")
        if key not in self._known:
            self._known[key] = self._price(candidate)
        known = self._known[key]
        return replace(known, candidate=candidate)

    def price_all(self, candidates: Iterable[PlanCandidate]) -> list[PricedCandidate]:
        """In their order."""
        return [self.price(candidate) for candidate in candidates]

    def _price(self, candidate: PlanCandidate) -> PricedCandidate:
        try:
            with warnings_kept() as kept:
                found = self._estimate(candidate.strategy)
            return PricedCandidate(candidate, found, warnings=tuple(kept))
        except InternalError:
            raise
        except HspmdError as error:
            shown = "; ".join(f"{name} {text}" for name, text in error.details[:1])
            return PricedCandidate(candidate, None, f"{error.what}: {shown}" if shown else error.what)

    def _estimate(self, strategy: Strategy) -> Estimate:
        check(strategy)
        cluster = self.devices.cluster
        cost = cost_of_ranks(cluster, "", strategy.devices)
        lowered = planning(strategy, self.devices.family, cost).run(Traced(self.graph))
        return estimate(lowered.program, cluster, self.optimizer, devices=strategy.devices, advise=False)
