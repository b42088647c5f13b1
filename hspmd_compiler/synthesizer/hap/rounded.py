"""The price of a program whose slices are whole: each cut dim is shared out in units, as programs run it.

HAP prices slices of any real length; 16 experts on two fast and six slow devices are not 2.99 and 1.67 each.
Ratios stay those of the plan; `layout.shares.assign_units` makes lengths of them, dim by dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...layout.shares import assign_units
from ..ratios import Vector
from .costs import HapPrices
from .operators import PENDING, WHOLE, HapOperator, HapValue, Leaf, cut_of
from .plan import HapPlan
from .transitions import HapStep, decisive_cut

Seconds = list[float]
"""Of each device."""


def rounded_s(plan: HapPlan) -> float:
    """Seconds of a step, with every cut in whole units."""
    rounding = Rounding(plan.prices)
    return sum(rounding.seconds(operator, step) for operator, step in plan.program.steps)


@dataclass(frozen=True, slots=True)
class Rounding:
    """Prices by device."""

    prices: HapPrices

    @property
    def counts(self) -> Sequence[int]:
        return [count for _, count in self.prices.machine.kinds]

    def by_device(self, vector: Vector) -> list[float]:
        """Of a vector by kind."""
        return [share for share, count in zip(vector, self.counts, strict=True) for _ in range(count)]

    def shares(self, units: int, vector: Vector) -> list[float]:
        """Each device's part of a dim of so many units."""
        return [held / units for held in assign_units(units, self.by_device(vector))]

    def of_cut(self, value: HapValue, placement: int) -> list[float]:
        dim, vector = cut_of(placement)
        return self.shares(value.shape[dim], self.prices.vectors[vector])

    def seconds(self, operator: HapOperator, step: HapStep) -> float:
        """As HAP sums: the slowest device's computing, and the volume of the one that exchanges most."""
        parts = [*self._loads(operator, step)]
        for operand, before, after in step.moves:
            parts.append(self._exchange(operator.inputs[operand], before, after))
        exchange = max(map(sum, zip(*parts, strict=True)), default=0.0)
        return self._compute(operator, step) + exchange

    def _compute(self, operator: HapOperator, step: HapStep) -> float:
        flops = 3 * operator.rule.flops
        if not step.alternative.shared:
            return flops / self.prices.machine.slowest
        value, placement = decisive_cut(operator, step.placements)
        speeds = self.by_device(tuple(speed for speed, _ in self.prices.machine.kinds))
        return max(flops * share / s for share, s in zip(self.of_cut(value, placement), speeds, strict=True))

    def _loads(self, operator: HapOperator, step: HapStep) -> list[Seconds]:
        links, machine = self.prices.machine.bandwidths, self.prices.machine
        found = []
        for value, placement in zip(operator.inputs, step.placements, strict=True):
            if value.leaf in (Leaf.PARAMETER, Leaf.BUFFER) and placement == WHOLE:
                if self.prices.parameters is None or value.shape[0] == 1:
                    found.append([value.elements / links.all_reduce] * machine.devices)
                else:
                    shares = self.shares(value.shape[0], self.prices.parameters)
                    found.append(self._volume(value, shares, 1 / links.all_gather + 1 / links.reduce_scatter))
        return found

    def _exchange(self, value: HapValue, before: int, after: int) -> Seconds:
        links = self.prices.machine.bandwidths
        if before == WHOLE:
            return [0.0] * self.prices.machine.devices
        if before == PENDING and after == WHOLE:
            return [2 * value.elements / links.all_reduce] * self.prices.machine.devices
        if before == PENDING or after == WHOLE:
            shares = self.of_cut(value, after if before == PENDING else before)
            return self._volume(value, shares, 1 / links.all_gather + 1 / links.reduce_scatter)
        pairs = zip(self.of_cut(value, before), self.of_cut(value, after), strict=True)
        same = cut_of(before)[0] == cut_of(after)[0]
        return self._volume(
            value, [abs(a - b) if same else max(a, b) for a, b in pairs], 2 / links.all_to_all
        )

    def _volume(self, value: HapValue, shares: Sequence[float], seconds: float) -> Seconds:
        return [value.elements * self.prices.machine.devices * share * seconds for share in shares]
