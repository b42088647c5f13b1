"""Which schedule a strategy gets that leaves it open, `schedule: auto`: the cheapest by simulation that fits.

Variables: the named schedule of all pipelines that have none of their own. Objective: the seconds of a step
of the compiled program, by `cost_models.estimate`; of those that prices can't tell apart, the bytes of the
rank with the most. Constraint: each rank's memory. Bound: every named schedule is compiled and priced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ...base.devices import DeviceKind
from ...base.log import logger, task
from ...cluster.cluster import ClusterSpec
from ...cluster.read import read_cluster
from ...cost_models.estimate import Estimate, estimate
from ...cost_models.steps.figures import cost_of_ranks
from ...errors import StrategyError
from ...ir.graph import LogicalGraph
from ...options import OptimizerConfig
from ...passes.compile_state import Traced
from ...passes.pipeline import planning
from ...strategy.schedules.interleaved import LANE_KINDS
from ...strategy.strategy import ScheduleKind, Strategy
from .ranking import AS_QUICK

NAMED = tuple(kind for kind in ScheduleKind if kind is not ScheduleKind.AUTO)


@dataclass(frozen=True, slots=True)
class PricedSchedule:
    """A named schedule with the estimate of its program."""

    kind: ScheduleKind
    estimate: Estimate

    @property
    def most_bytes(self) -> int:
        """Of the rank that holds most."""
        return max(one.memory.peak.total for one in self.estimate.ranks)

    @property
    def excess_bytes(self) -> float:
        """What the rank that is worst off lacks; 0 where all have enough."""
        return max(0.0, *(one.memory.peak.total - one.usable_bytes for one in self.estimate.ranks))

    @property
    def text(self) -> str:
        """For people."""
        held = "does not fit" if self.excess_bytes else f"{self.most_bytes / (1 << 20):.1f} MiB at most"
        return f"{self.kind.value} {self.estimate.step_s:.4g} s, {held}"


def choose_schedule(
    graph: LogicalGraph,
    strategy: Strategy,
    optimizer: OptimizerConfig,
    device: DeviceKind,
    cluster: object,
) -> Strategy:
    """The strategy with a named schedule. cluster: its form; None is refused where it matters."""
    if strategy.schedule is not ScheduleKind.AUTO:
        return strategy
    if all(len(spec.stages) == 1 or spec.schedule is not None for spec in strategy.pipelines):
        return replace(strategy, schedule=ScheduleKind.ONE_F_ONE_B)
    if not isinstance(cluster, Mapping | str | Path):
        raise _no_prices()
    spec = read_cluster(cluster)
    kinds = [kind for kind in NAMED if kind in LANE_KINDS or not strategy.has_lanes]
    with task("price schedules", len(kinds)) as progress:
        priced = []
        for kind in kinds:
            priced.append(_priced(graph, replace(strategy, schedule=kind), optimizer, device, spec))
            progress.advance()
    chosen = cheapest(priced)
    logger.info("schedule auto is %s of %s", chosen.kind.value, "; ".join(one.text for one in priced))
    return replace(strategy, schedule=chosen.kind)


def cheapest(priced: list[PricedSchedule]) -> PricedSchedule:
    """The quickest that fits, and of those as quick the one of least memory; else what lacks least."""
    fitting = [one for one in priced if not one.excess_bytes]
    if not fitting:
        return min(priced, key=lambda one: one.excess_bytes)
    least_s = min(one.estimate.step_s for one in fitting)
    as_quick = [one for one in fitting if one.estimate.step_s <= least_s * (1 + AS_QUICK)]
    return min(as_quick, key=lambda one: (one.most_bytes, one.estimate.step_s))


def _priced(
    graph: LogicalGraph,
    strategy: Strategy,
    optimizer: OptimizerConfig,
    device: DeviceKind,
    cluster: ClusterSpec,
) -> PricedSchedule:
    cost = cost_of_ranks(cluster, "", strategy.devices)
    program = planning(strategy, device, cost).run(Traced(graph)).program
    found = estimate(program, cluster, optimizer, devices=strategy.devices, advise=False)
    return PricedSchedule(strategy.schedule, found)


def _no_prices() -> StrategyError:
    names = ", ".join(kind.value for kind in NAMED)
    return StrategyError(
        "a schedule is left open, and no cluster says what each costs",
        details=[("schedule", ScheduleKind.AUTO.value)],
        rule="schedule auto is the cheapest by simulation on the cluster that is compiled for",
        fix=f"give --cluster FILE, in Python cluster=..., or name a schedule: {names}",
    )
