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
from .batches import samples_by_speed, shares_by_speed, strategy_of
from .candidates import PlanCandidate
from .groupings import Grouping, groupings
from .plan import PlanningTask
from .realise import realise


def find_candidates(given: PlanningTask) -> list[PlanCandidate]:
    """The best program of each grouping whose groups have as many devices, by its price."""
    with task("read the rules"):
        space = SearchSpace.of(given.graph)
    even = [one for one in groupings(given.devices) if one.is_even]
    found: list[PlanCandidate] = []
    with task("search", len(even)) as progress:
        near = 0.0
        for grouping in even:
            search_here = _GroupingSearch(given, space, grouping, near)
            found += search_here.candidates()
            near = next((one.found.memory_s for one in found[::-1] if one.found and one.found.memory_s), near)
            progress.advance()
    return sorted(found, key=lambda one: float("inf") if one.found is None else one.found.price_s)


@dataclass(frozen=True, slots=True)
class _GroupingSearch:
    """The search inside groups of as many devices each. near: what memory cost in the last search."""

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

    def _speeds(self) -> list[float]:
        """Of each place in a group, on average over the groups."""
        return [fmean(each) for each in zip(*self.given.group_speeds(self.grouping), strict=True)]

    def _samples(self) -> tuple[int, ...]:
        speeds = [sum(each) for each in self.given.group_speeds(self.grouping)]
        return samples_by_speed(self.given.graph.batch, speeds)

    def _base(self) -> Strategy | None:
        shares = [shares_by_speed(self._speeds())] * len(self.grouping.groups)
        return strategy_of(
            self.grouping, self._samples(), self.given.layers, self.given.devices, shares=shares
        )

    def _found(self, base: Strategy) -> FoundProgram | None:
        """None where nothing fits."""
        by_id = self.given.devices.by_id
        machine = machine_of(
            self.given.devices.cluster,
            [[by_id[one].slot for one in pipeline.devices] for pipeline in base.pipelines],
            ratios=vertices(self._speeds()),
            batches=[pipeline.batch_size for pipeline in base.pipelines],
        )
        try:
            options = SearchOptions(optimizer=self.given.optimizer)
            return search(self.space, machine, options, near=self.near)
        except InternalError:
            raise
        except HspmdError:
            return None
