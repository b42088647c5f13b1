"""Every strategy of a small model on few devices: groups, layouts of each parameter and at each anchor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from hspmd_compiler.ir.anchor_rows import anchors_of
from hspmd_compiler.strategy.strategy import LayoutWish, Override, Strategy
from hspmd_compiler.synthesizer.planner.batches import samples_by_speed, shares_by_speed, strategy_of
from hspmd_compiler.synthesizer.planner.candidates import CandidatePricer, PlanCandidate
from hspmd_compiler.synthesizer.planner.groupings import groupings
from hspmd_compiler.synthesizer.planner.plan import PlanningTask


def all_strategies(given: PlanningTask, at: Sequence[str], zeros: Sequence[int]) -> Iterator[Strategy]:
    """Of each grouping, with shares by speed and without. at: anchors that may have a layout."""
    graph = given.graph
    for grouping in groupings(given.devices):
        speeds = given.group_speeds(grouping)
        for samples in {
            samples_by_speed(graph.batch, [sum(each) for each in speeds]),
            samples_by_speed(graph.batch, [1.0] * len(speeds)),
        }:
            for shares in {tuple(shares_by_speed(each) for each in speeds), (None,) * len(speeds)}:
                base = strategy_of(grouping, samples, given.layers, given.devices, shares=shares)
                if base is not None:
                    for zero in zeros:
                        yield replace(base, zero=zero)
                        yield from _laid_out(given, base, at, zero) if len(grouping.groups) == 1 else ()


def _laid_out(given: PlanningTask, base: Strategy, at: Sequence[str], zero: int) -> Iterator[Strategy]:
    graph = given.graph
    places = [place for place in anchors_of(graph) if place.name in at]
    ways = [
        [Override(name, duplicate=True), *(Override(name, split=dim) for dim in range(len(info.shape)))]
        for name, info in graph.params.items()
    ]
    wishes = [
        [
            None,
            LayoutWish(place.name, "D"),
            *(LayoutWish(place.name, f"S{d}") for d in range(len(place.shape))),
        ]
        for place in places
    ]
    for overrides in product(*ways):
        for chosen in product(*wishes):
            layouts = tuple(wish for wish in chosen if wish is not None)
            yield replace(base, overrides=overrides, layouts=layouts, zero=zero)


def least_step_s(given: PlanningTask, at: Sequence[str], zeros: Sequence[int]) -> tuple[float, int]:
    """Seconds of the quickest of all that compile, and how many those are."""
    pricer = CandidatePricer(given.graph, given.devices, given.optimizer)
    priced = [pricer.price(PlanCandidate("", strategy)) for strategy in all_strategies(given, at, zeros)]
    steps = [one.step_s for one in priced if one.estimate is not None]
    return min(steps), len(steps)
