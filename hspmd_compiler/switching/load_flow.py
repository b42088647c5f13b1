"""Work divided among those that can do it, so that the busiest is the least busy: exact, by maximum flow.

Variables: of each demand, how many units each of its workers does, whole and at least 0. Constraints: every
demand is done whole. Objective: the least possible largest time over workers (units by `worker_s`) and pools
of workers (units of all of them by `pool_s`); then the largest time of a pool; then the most units of a
worker. Bound: a set of demands takes at least its units over the rates of all that may do them together; the
largest of these bounds is the optimum, and the set that attains it is a minimum cut.

Search: at a time that is too short the cut names a set with a larger bound, which is the next time (Newton's
method); it ends at the optimum, after as many flows as there are bottlenecks on the way. A capacity is
rounded up to whole units, so that loads are optimal up to one unit of each worker and pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from .max_flow import FlowNetwork

Workers = tuple[int, ...]
Division = dict[Workers, dict[int, int]]
"""Units of each demand by worker, those of 0 left out."""
Times = Mapping[int, float]
"""Seconds that some workers or pools have."""
LEVELS = 8
"""How many times over the busiest of the workers that are left is made less busy."""


@dataclass(frozen=True, slots=True)
class LoadProblem:
    """demands: units by the workers that may do them. pools: of workers, the pool of each.

    worker_s, pool_s: seconds a unit, of any worker and of each pool; 0: no limit.
    """

    demands: Mapping[Workers, int]
    pools: Mapping[int, int]
    worker_s: float
    pool_s: Mapping[int, float]


def divided(problem: LoadProblem) -> Division:
    """An optimal division, the same for equal problems."""
    network = _Network(problem)
    most_s = network.least_s({}, {})
    pool_s = network.least_s(dict.fromkeys(network.pool_of, most_s), {})
    network.level(dict.fromkeys(network.pool_s, pool_s))
    return network.division()


class _Network:
    """Source, demands, workers, pools, sink. Times that are told by worker or pool limit it."""

    def __init__(self, problem: LoadProblem) -> None:
        self.demands, self.worker_s = problem.demands, problem.worker_s
        self.total = sum(problem.demands.values())
        workers = sorted({worker for name in problem.demands for worker in name})
        used = {problem.pools[worker] for worker in workers}
        self.pool_s = {pool: problem.pool_s[pool] for pool in sorted(used)}
        self.at = {name: index for index, name in enumerate((*problem.demands, *workers))}
        self.pool_at = {pool: len(self.at) + index for index, pool in enumerate(self.pool_s)}
        self.pool_of = {worker: problem.pools[worker] for worker in workers}
        source = len(self.at) + len(self.pool_at)
        self.flow = FlowNetwork(source + 2, source, source + 1)
        self.held_back: list[int] = []
        self._connect(source)

    def _connect(self, source: int) -> None:
        at, flow = self.at, self.flow
        for name, units in self.demands.items():
            flow.edge(source, at[name], units)
        self.by_demand = {
            name: {worker: flow.edge(at[name], at[worker], units) for worker in name}
            for name, units in self.demands.items()
        }
        self.by_worker = {
            worker: flow.edge(at[worker], self.pool_at[pool]) for worker, pool in self.pool_of.items()
        }
        self.by_pool = {pool: flow.edge(start, flow.sink) for pool, start in self.pool_at.items()}

    def level(self, pools: Times) -> None:
        """The fewest units for the busiest worker, then for the busiest of the others, some times over."""
        self.worker_s = 1.0  # any will do: workers are alike
        told: dict[int, float] = {}
        for _ in range(LEVELS):
            most = self.least_s(told, pools)
            told |= dict.fromkeys(self.held_back, most)
            if len(told) == len(self.pool_of):
                return

    def least_s(self, workers: Times, pools: Times) -> float:
        """The least largest time of the others, where these have the times that are told.

        What flows then takes no longer. held_back: the workers of which this is the bound.
        """
        self.flow.clear()
        self.held_back = []
        time_s = 0.0
        while True:
            self._limit(time_s, workers, pools)
            self.flow.fill()
            if not any(map(self._is_cut_off, self.demands)):
                return time_s
            time_s = self._next_s(workers, pools)

    def _limit(self, time_s: float, workers: Times, pools: Times) -> None:
        for worker, edge in self.by_worker.items():
            self.flow.limit(edge, self._units(workers.get(worker, time_s), self.worker_s))
        for pool, edge in self.by_pool.items():
            self.flow.limit(edge, self._units(pools.get(pool, time_s), self.pool_s[pool]))

    def _units(self, time_s: float, unit_s: float) -> int:
        return min(self.total, ceil(time_s / unit_s)) if unit_s else self.total

    def _is_cut_off(self, name: Workers | int) -> bool:
        """Whether a demand or worker is on the source's side of the cut: no more can flow from it."""
        return self.flow.levels[self.at[name]] >= 0

    def _next_s(self, workers: Times, pools: Times) -> float:
        """The bound of the demands that are cut off: their units at all rates in the cut."""
        left = sum(units for name, units in self.demands.items() if self._is_cut_off(name))
        rate = 0.0
        for told_s, unit_s in self._cut(workers, pools):
            if told_s is None and unit_s:
                rate += 1 / unit_s
            else:
                left -= self._units(told_s or 0.0, unit_s)
        self.held_back = [
            worker for worker in self.pool_of if self._is_cut_off(worker) and worker not in workers
        ]
        return left / rate

    def _cut(self, workers: Times, pools: Times) -> Iterator[tuple[float | None, float]]:
        """Of the workers and pools in the cut: the time that they have, if it is told, and that of a unit."""
        levels = self.flow.levels
        for worker, pool in self.pool_of.items():
            if self._is_cut_off(worker) and levels[self.pool_at[pool]] < 0:
                yield workers.get(worker), self.worker_s
        for pool, unit_s in self.pool_s.items():
            if levels[self.pool_at[pool]] >= 0:
                yield pools.get(pool), unit_s

    def division(self) -> Division:
        return {
            name: {worker: units for worker, edge in edges.items() if (units := self.flow.flow(edge))}
            for name, edges in self.by_demand.items()
        }
