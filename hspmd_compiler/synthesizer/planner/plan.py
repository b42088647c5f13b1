"""The outer loop of a search: devices in groups, a program for each, the best few compiled and priced.

Variables: how devices are grouped in pipelines, samples and micro-batches of each, the program inside
groups, ZeRO and recomputation. Objective: the seconds of a step that `cost_models.estimate` finds for the
compiled program. Constraints: each rank's memory. Bound: all work on all devices at once, without
communication; inside a grouping the search proves its own. Baselines are candidates, so no plan is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...base.log import task
from ...cluster.cluster import ClusterSpec, DeviceSpec
from ...cost_models.estimate import Estimate, estimate
from ...ir.graph import LogicalGraph
from ...options import OptimizerConfig
from ...passes.compile_state import Traced
from ...passes.pipeline import planning
from ...strategy.strategy import Strategy
from ..value_types import FoundProgram
from .baselines import baselines
from .batches import samples_by_speed, shares_by_speed, strategy_of
from .candidates import CandidatePricer, PlanCandidate, PricedCandidate
from .groupings import Grouping, groupings
from .memory_ladder import LADDER, lighter
from .misfits import no_plan_fits
from .planned_devices import PlannedDevices, devices_of
from .ranking import Spread, rank

MOST_LIGHTENED = 6
"""Of the candidates that do not fit: so many, those that lack least, are tried with less memory."""


@dataclass(frozen=True, slots=True)
class PlanningTask:
    """What is planned. whole_s: seconds of the whole step on one device of each kind."""

    graph: LogicalGraph
    devices: PlannedDevices
    optimizer: OptimizerConfig
    whole_s: dict[DeviceSpec, float]

    @property
    def layers(self) -> int:
        """Of the model, 1 where it has none."""
        return max(len(self.graph.layers), 1)

    @property
    def speeds(self) -> dict[DeviceSpec, float]:
        """Steps a second of each kind of device alone."""
        return {kind: 1 / seconds for kind, seconds in self.whole_s.items()}

    def group_speeds(self, grouping: Grouping) -> list[list[float]]:
        """Of each device in each group."""
        by_id, speeds = self.devices.by_id, self.speeds
        return [[speeds[by_id[one].kind] for one in group] for group in grouping.groups]


Searcher = Callable[[PlanningTask], Iterable[PlanCandidate]]
"""Finds programs for a task and realises those that are worth being compiled."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A strategy and what is known of it.

    chosen: the strategy with its estimate. bound_s: no step on these devices is quicker. runner_ups: all
    others that were compiled, the quickest first; one that is tied with the plan may be quicker. notes: what
    to know of it.
    """

    chosen: PricedCandidate
    bound_s: float
    runner_ups: tuple[PricedCandidate, ...]
    notes: tuple[str, ...]
    devices: PlannedDevices
    graph: LogicalGraph

    def __repr__(self) -> str:
        """In a line: its graph and all that was considered fill megabytes."""
        used = f"{self.strategy.world_size} of {len(self.devices.devices)} devices"
        return f"Plan({self.chosen.name!r}, step_s={self.estimate.step_s:.3g}, {used})"

    @property
    def strategy(self) -> Strategy:
        return self.chosen.strategy

    @property
    def estimate(self) -> Estimate:
        """Of the compiled program."""
        assert self.chosen.estimate is not None, "a plan was compiled"
        return self.chosen.estimate

    @property
    def found(self) -> FoundProgram | None:
        """What the search says of it; None where a baseline is the quickest."""
        return self.chosen.candidate.found

    @property
    def searched(self) -> PricedCandidate | None:
        """The plan where a search found it, else the quickest that a search found."""
        every = (self.chosen, *self.runner_ups)
        return next((one for one in every if one.candidate.found is not None), None)

    @property
    def planned_s(self) -> float | None:
        """What the search took it for."""
        return None if self.found is None else self.found.price_s

    @property
    def gap(self) -> float:
        """How far the step is above the bound, as a share of the step."""
        return 1 - self.bound_s / self.estimate.step_s if self.estimate.step_s else 0.0


def plan_graph(
    graph: LogicalGraph,
    cluster: ClusterSpec,
    optimizer: OptimizerConfig,
    *,
    searcher: Searcher | None = None,
    at: str = "",
    fills: bool = True,
) -> Plan:
    """The quickest strategy for a traced step that fits these machines.

    at: where the cluster comes from, for errors. fills: whether groupings of which nothing is searched are
    candidates as well, with every operator split as its rule does by default.
    """
    return _Loop(task_of(graph, cluster, optimizer, at), searcher, fills).run()


def task_of(
    graph: LogicalGraph, cluster: ClusterSpec, optimizer: OptimizerConfig, at: str = ""
) -> PlanningTask:
    """What is planned, with all that a plan needs of the cluster checked."""
    devices = devices_of(cluster, graph, at)
    with task("price the model on one device"):
        return PlanningTask(graph, devices, optimizer, _whole_s(graph, devices, optimizer))


def _whole_s(
    graph: LogicalGraph, devices: PlannedDevices, optimizer: OptimizerConfig
) -> dict[DeviceSpec, float]:
    """Seconds of the whole step on one device of each kind."""
    first = devices.ids[:1]
    strategy = strategy_of(Grouping((first,)), (graph.batch,), max(len(graph.layers), 1), devices)
    assert strategy is not None, "the first device may stand alone"
    program = planning(strategy, devices.family).run(Traced(graph)).program
    return {
        kind: estimate(program, devices.alone(kind), optimizer, advise=False).step_s for kind in devices.kinds
    }


class _Loop:
    """All candidates of a task, compiled and compared."""

    def __init__(self, given: PlanningTask, searcher: Searcher | None, fills: bool) -> None:
        self.given, self.searcher, self.fills = given, searcher, fills
        self.pricer = CandidatePricer(given.graph, given.devices, given.optimizer)

    def run(self) -> Plan:
        """The quickest that fits."""
        priced = self._priced(self._candidates())
        if not any(one.fits for one in priced):
            priced += self._lightened(priced)
        ranking = rank(priced, Spread.of(self.given.devices.cluster.calibration))
        ranked = ranking.ranked
        if not ranked[0].fits:
            raise no_plan_fits(ranked)
        named = replace(ranked[0].candidate, strategy=replace(ranked[0].strategy, name=ranked[0].name))
        return Plan(
            replace(ranked[0], candidate=named),
            self._bound_s,
            ranked[1:],
            (*ranking.notes, *self._notes(priced), *ranked[0].warnings),
            self.given.devices,
            self.given.graph,
        )

    def _notes(self, priced: Sequence[PricedCandidate]) -> tuple[str, ...]:
        """Of the cluster, of candidates, of the model."""
        found = [*self.given.devices.notes]
        for one in priced:
            found += one.candidate.notes
        return tuple(dict.fromkeys(found))

    @cached_property
    def _bound_s(self) -> float:
        """All devices at work all the time, each on its part by its speed."""
        speeds = self.given.speeds
        return 1 / sum(speeds[device.kind] for device in self.given.devices.devices)

    def _candidates(self) -> list[PlanCandidate]:
        """All baselines, equal ones too, and each further strategy once."""
        given = self.given
        found = list(baselines(given.devices, given.speeds, given.graph.batch, given.layers))
        known = {candidate.strategy for candidate in found}
        for candidate in (*self._searched(), *(self._by_speed() if self.fills else ())):
            if candidate.strategy not in known:
                known.add(candidate.strategy)
                found.append(candidate)
        return found

    def _searched(self) -> list[PlanCandidate]:
        if self.searcher is None:
            return []
        with task("search"):
            return list(self.searcher(self.given))

    def _by_speed(self) -> Iterator[PlanCandidate]:
        """Every operator split as its rules do by default, samples and shares by speed."""
        given = self.given
        for grouping in groupings(given.devices):
            speeds = given.group_speeds(grouping)
            samples = samples_by_speed(given.graph.batch, [sum(each) for each in speeds])
            shares = [shares_by_speed(each) for each in speeds]
            strategy = strategy_of(grouping, samples, given.layers, given.devices, shares=shares)
            if strategy is not None:
                yield PlanCandidate(f"{grouping.name} by speed", strategy)

    def _priced(self, candidates: Sequence[PlanCandidate]) -> list[PricedCandidate]:
        with task("compile and price", len(candidates)) as progress:
            found = []
            for candidate in candidates:
                found.append(self.pricer.price(candidate))
                progress.advance()
        return found

    def _lightened(self, priced: Sequence[PricedCandidate]) -> list[PricedCandidate]:
        """What fits on the first rung on which anything does; else all that was tried."""
        possible = [one for one in priced if one.holds_samples]
        closest = sorted(possible, key=lambda one: one.excess_bytes)[:MOST_LIGHTENED]
        found: list[PricedCandidate] = []
        if not closest:
            return found
        for rung in LADDER:
            tried = [
                PlanCandidate(f"{one.name}, {rung.name}", lighter(one.strategy, rung), one.candidate.found)
                for one in closest
            ]
            found += self._priced(tried)
            if any(one.fits for one in found):
                break
        return found
