"""Programs found for each grouping of the devices, realised as candidates, the most promising first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean

from ...base.log import task
from ...errors import HspmdError, InternalError
from ...strategy.strategy import Strategy
from ..machine import machine_of
from ..options import SearchOptions
from ..ratios import vertices
from ..search import search
from ..space.search_space import SearchSpace
from ..value_types import FoundProgram
from ..whole_shares import Shares
from .batches import samples_by_speed, shares_by_speed, strategy_of
from .candidates import PlanCandidate
from .found_to_strategy import realise
from .groupings import Grouping, groupings
from .plan import PlanningTask

MOST_UNEVEN = 8
"""Groupings of unequal sizes that are searched; a cluster of many nodes has dozens, much like each other."""
MOST_COMPILED, MOST_UNEVEN_COMPILED = 6, 3
"""Of what is found in groups of one size, and in others: so many are compiled and priced in full."""


def find_candidates(given: PlanningTask) -> list[PlanCandidate]:
    """The best programs, by their prices: of all even groupings, and of some of the others."""
    with task("read the rules"):
        space = SearchSpace.of(given.graph)
    every = groupings(given.devices)
    even = [one for one in every if one.is_even]
    others = _some([one for one in every if not one.is_even])
    near, found = 0.0, {True: list[PlanCandidate](), False: list[PlanCandidate]()}
    with task("search", len(even) + len(others)) as progress:
        for grouping in (*even, *others):
            for candidate in _GroupingSearch(given, space, grouping, near).candidates():
                found[grouping.is_even].append(candidate)
                near = _price(candidate).memory_s or near
            progress.advance()
    ranked = {is_even: sorted(ones, key=lambda one: _price(one).price_s) for is_even, ones in found.items()}
    return ranked[True][:MOST_COMPILED] + ranked[False][:MOST_UNEVEN_COMPILED]


def _price(candidate: PlanCandidate) -> FoundProgram:
    assert candidate.found is not None, "found by a search"
    return candidate.found


def _some(given: list[Grouping]) -> list[Grouping]:
    """Not more than a few, from all over the list."""
    step = max(1.0, len(given) / MOST_UNEVEN)
    return [given[int(at * step)] for at in range(min(len(given), MOST_UNEVEN))]


@dataclass(frozen=True, slots=True)
class _GroupingSearch:
    """The search inside groups of devices. near: what memory cost in the last search.

    Groups of one size share ratio vectors, one for each kind of device, since a layout's own shares are those
    of all groups. Others cut by the shares of their stages, by speed.
    """

    given: PlanningTask
    space: SearchSpace
    grouping: Grouping
    near: float = 0.0

    def candidates(self) -> Iterator[PlanCandidate]:
        """The program as found; without ZeRO, where memory may not need it; and with gradients that are
        summed, should the compiler refuse their factors."""
        base = self._base()
        found = None if base is None else self._found(base)
        if base is None or found is None:
            return
        strategy = realise(found, self.given.graph, base)
        yield PlanCandidate(f"{self.grouping.name}, searched", strategy, found)
        if strategy.zero:
            plain = replace(strategy, zero=0)
            yield PlanCandidate(f"{self.grouping.name}, searched, no ZeRO", plain, found)
        if any(one.gradient is not None for one in strategy.overrides):
            summed = tuple(replace(one, gradient=None) for one in strategy.overrides)
            plain = replace(strategy, overrides=summed)
            yield PlanCandidate(f"{self.grouping.name}, searched, no factors", plain, found)

    def _speeds(self) -> list[list[float]]:
        """Of each place in each group; in groups of one size on average over all."""
        speeds = self.given.group_speeds(self.grouping)
        if not self.grouping.is_even:
            return speeds
        return [[fmean(each) for each in zip(*speeds, strict=True)]] * len(speeds)

    def _samples(self) -> tuple[int, ...]:
        speeds = [sum(each) for each in self.given.group_speeds(self.grouping)]
        return samples_by_speed(self.given.graph.batch, speeds)

    def _base(self) -> Strategy | None:
        shares = [shares_by_speed(speeds) for speeds in self._speeds()]
        return strategy_of(
            self.grouping, self._samples(), self.given.layers, self.given.devices, shares=shares
        )

    def _ratios(self, base: Strategy) -> list[tuple[Shares, ...]]:
        """The vectors of each group that has samples."""
        speeds = dict(zip(self.grouping.groups, self._speeds(), strict=True))
        found = [vertices(speeds[pipeline.devices]) for pipeline in base.pipelines]
        return found if self.grouping.is_even else [each[:1] for each in found]

    def _found(self, base: Strategy) -> FoundProgram | None:
        """None where nothing fits."""
        by_id = self.given.devices.by_id
        machine = machine_of(
            self.given.devices.cluster,
            [[by_id[one].slot for one in pipeline.devices] for pipeline in base.pipelines],
            ratios=self._ratios(base),
            batches=[pipeline.batch_size for pipeline in base.pipelines],
            samples=[pipeline.batch_size for pipeline in base.pipelines],
        )
        try:
            options = SearchOptions(optimizer=self.given.optimizer)
            return search(self.space, machine, options, near=self.near)
        except InternalError:
            raise
        except HspmdError:
            return None
