"""A HAP program as a Strategy: one stage of all devices, one micro-batch, overrides and layouts.

What HAP cuts along a dim of length 1, and weights of norms, are whole: a compiled program sums their
gradients. Slices are of whole units, `assign_units` of the ratios. A value that is exchanged has its new
layout from its anchor on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...base import name_glob
from ...layout.shares import assign_units
from ...strategy.strategy import LayoutWish, Override, Strategy
from ..planner.name_patterns import as_globs
from ..ratios import Vector
from .notes import loads
from .operators import PENDING, HapGraph, HapValue, Leaf, cut_of, following, is_cut
from .plan import HapPlan

SHARDED_PARAMETERS = 3
"""The ZeRO stage that gathers parameters where they are used."""


def realise_hap(plan: HapPlan, graph: HapGraph, speeds: Sequence[float], base: Strategy) -> Strategy:
    """The strategy with what was found.

    graph: recorded with anchors. speeds: of the devices of the stage, in its order. base: one pipeline of
    one stage and one micro-batch.
    """
    writer = _Writer(plan, speeds)
    return replace(
        base,
        overrides=tuple(writer.overrides(graph)),
        layouts=tuple(writer.layouts(graph)),
        zero=SHARDED_PARAMETERS if plan.prices.parameters is not None else 0,
    )


class _Writer:
    def __init__(self, plan: HapPlan, speeds: Sequence[float]) -> None:
        self.plan = plan
        kinds = [speed for speed, _ in plan.prices.machine.kinds]
        self.kinds = [kinds.index(speed) for speed in speeds]
        self.makers = {value: one for one, _ in plan.program.steps for value in one.outputs}

    def overrides(self, graph: HapGraph) -> Iterator[Override]:
        """For all parameters."""
        chosen: dict[str, Override] = {name: Override(name, duplicate=True) for name, _ in graph.uncounted}
        for value, placement in loads(self.plan):
            if value.leaf is Leaf.PARAMETER:
                chosen[value.name] = self._held(value, placement)
        said = {name: (one.split, one.shares) for name, one in chosen.items()}
        for match, (split, shares) in as_globs(said, [], name_glob.matches):
            yield Override(match, duplicate=split is None, split=split, shares=shares)

    def layouts(self, graph: HapGraph) -> Iterator[LayoutWish]:
        """For inputs that are cut, and values that are exchanged."""
        chosen = {
            value.anchor: self._states(value, placement)
            for value, placement in loads(self.plan)
            if value.leaf is Leaf.INPUT and is_cut(placement)
        }
        for operator, step in self.plan.program.steps:
            for operand, _, after in step.moves:
                value, placement = self._anchored(operator.inputs[operand], after)
                if value.anchor:
                    chosen[value.anchor] = self._states(value, placement)
        names = dict.fromkeys((*graph.anchors, *(value.anchor for value in graph.leaves(Leaf.INPUT))))
        others = [name for name in names if name not in chosen]
        for at, to in as_globs(chosen, others, name_glob.matches_exactly):
            yield LayoutWish(at, to)

    def _anchored(self, value: HapValue, placement: int) -> tuple[HapValue, int]:
        """A view has no anchor: what it is of is exchanged, to the placement that gives the view this one."""
        while not value.anchor and value in self.makers:
            operator = self.makers[value]
            vector = cut_of(placement)[1] if is_cut(placement) else 0
            needs = [
                one.needs[0]
                for one in operator.rule.alternatives
                if following(one.gives[0], vector) == placement
            ]
            if not needs:
                break
            value, placement = operator.inputs[0], following(needs[0], vector)
        return value, placement

    def _held(self, value: HapValue, placement: int) -> Override:
        if not is_cut(placement) or value.shape[cut_of(placement)[0]] == 1:
            return Override(value.name, duplicate=True)
        dim, vector = cut_of(placement)
        return Override(value.name, split=dim, shares=self._units(value.shape[dim], vector))

    def _states(self, value: HapValue, placement: int) -> str:
        if not is_cut(placement):
            return "P" if placement == PENDING else "D"
        dim, vector = cut_of(placement)
        return f"S{dim}({','.join(map(str, self._units(value.shape[dim], vector)))})"

    def _units(self, units: int, vector: int) -> tuple[int, ...]:
        shares: Vector = self.plan.prices.vectors[vector]
        return assign_units(units, [shares[kind] for kind in self.kinds])
