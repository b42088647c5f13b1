"""The search of one group of machines: the cheapest program of the space, that fits.

Variables, objective and states are in `frontier.py`. Constraint: what each device holds, parameters with
gradients and optimizer state, and what backward reads, is no more than its memory. Where the cheapest
program holds more, bytes get a price, by bisection, until it fits: the price found is that of a program that
fits, the bound the greatest of the cheapest prices less what all memory costs at its price (Lagrange).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from ..ir.graph import LogicalGraph
from ..passes.deduction.placement import GraphFacts
from .considered import Considered
from .found import FoundChoices
from .frontier import Frontier, cheapest
from .machine import SearchMachine
from .memory import refused
from .options import MemoryPrices, SearchOptions
from .priced_steps import PricedSteps
from .row_prices import RowPrices
from .space import SearchSpace
from .templates import BlockChain, unrolled
from .value_types import FoundProgram

DOUBLINGS, HALVINGS = 40, 12
"""Of the price of a byte, until a program fits, and then for the least that does."""


@dataclass(slots=True)
class GroupSearch:
    """Searches of one space on one machine."""

    space: SearchSpace
    machine: SearchMachine
    options: SearchOptions
    stats: Counter[str] = field(default_factory=Counter)

    def run(self) -> FoundProgram:
        """The cheapest that fits; HspmdError where none does."""
        first, _ = self._at(MemoryPrices((0.0,) * len(self.machine.lanes)))
        if not self.options.memory or self._over(first) <= 0:
            return first
        return self._fitted(first)

    def _at(self, memory: MemoryPrices) -> tuple[FoundProgram, float]:
        """The cheapest at these prices of bytes, and its price with them."""
        prices = RowPrices(self.space.works, self.machine)
        priced = PricedSteps(self.space, prices, self.options, memory)
        frontier = Frontier(priced.of_steps, self.space.places, self.options.dominance, self.stats)
        layered = [self.space.steps[first].row.layer is not None for first, _ in self.space.blocks]
        recompute = self.options.recompute and memory.anything
        chain = BlockChain(frontier, self.space.blocks, layered, recompute, self.options.templates)
        _, price, choices = cheapest(chain.run())
        found = FoundChoices(priced, self.options, list(unrolled(choices, self.space.blocks)))
        program = found.program(self.stats, None)
        return replace(program, considered=Considered(chain, self.space, self.machine)), price

    def _over(self, found: FoundProgram) -> float:
        """By how much the worst device's memory is exceeded, as a part of it."""
        return max(
            size / lane.capacity_bytes - 1
            for size, lane in zip(found.memory_bytes, self.machine.lanes, strict=True)
        )

    def _fitted(self, first: FoundProgram) -> FoundProgram:
        capacities = [lane.capacity_bytes for lane in self.machine.lanes]
        bound = first.price_s
        low, high, best, least = 0.0, first.price_s, None, first
        for _ in range(DOUBLINGS):
            found, price = self._at(_prices(high, capacities))
            bound = max(bound, price - high)
            least = min(least, found, key=self._over)
            if self._over(found) <= 0:
                best = found
                break
            low, high = high, 4 * high
        if best is None:
            raise refused(least, self.machine, self.space)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            found, price = self._at(_prices(middle, capacities))
            bound = max(bound, price - middle)
            if self._over(found) <= 0:
                high, best = middle, min(best, found, key=lambda one: one.price_s)
            else:
                low = middle
        return replace(best, bound_s=min(bound, best.price_s))


def _prices(total_s: float, capacities: list[float]) -> MemoryPrices:
    """All memory of all devices that differ for so many seconds."""
    return MemoryPrices(tuple(total_s / len(capacities) / one for one in capacities))


def search(
    graph: LogicalGraph | SearchSpace,
    machine: SearchMachine,
    options: SearchOptions | None = None,
    facts: GraphFacts | None = None,
) -> FoundProgram:
    """The cheapest program of a graph on a machine.

    graph: or its space, which searches on several machines share. Raises HspmdError where nothing fits.
    """
    space = graph if isinstance(graph, SearchSpace) else SearchSpace.of(graph, facts)
    return GroupSearch(space, machine, options or SearchOptions()).run()
