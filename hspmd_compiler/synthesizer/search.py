"""The search of one group of machines: the cheapest program of the space, that fits.

Variables, objective and states are in `dynamic_program.py`. Constraint: what each device holds, parameters
with gradients and optimizer state, and what backward reads, is no more than its memory. `fit.py` looks for a
program that fits where the cheapest does not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from ..base.collection import without_collection
from ..ir.graph import LogicalGraph
from ..passes.deduction.placement import GraphFacts
from .block_chain import BlockChain
from .considered import Considered
from .dynamic_program import Frontier, cheapest, links
from .fit import Fitting, FoundAt
from .found import FoundChoices
from .machine import SearchMachine
from .options import MemoryPrices, SearchOptions
from .priced_steps import PricedSteps
from .row_prices import RowPrices
from .space.search_space import SearchSpace
from .value_types import FoundProgram


@dataclass(slots=True)
class GroupSearch:
    """Searches of one space on one machine, at any prices of memory. near: as of `search`."""

    space: SearchSpace
    machine: SearchMachine
    options: SearchOptions
    near: float = 0.0
    prices: RowPrices = field(init=False)
    stats: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.prices = RowPrices(self.space.works, self.machine)

    def run(self) -> FoundProgram:
        """The cheapest that fits; HspmdError where none does."""
        first = self.at(MemoryPrices((0.0,) * len(self.machine.lanes)))
        if not self.options.memory or first.over <= 0:
            return self._program(first, None)
        fitting = Fitting(self.machine, self.space, self.at, first, self.near)
        found = fitting.run()
        return replace(self._program(found, fitting.bound_s), memory_s=fitting.rate)

    def at(self, memory: MemoryPrices) -> FoundAt:
        """The cheapest at these prices of bytes."""
        self.stats["searches"] += 1
        priced = PricedSteps(self.space, self.prices, self.options, memory)
        frontier = Frontier(priced.of_steps, self.options.dominance, self.stats)
        chain = BlockChain(
            frontier,
            self.space.blocks,
            self.space.regions,
            self.space.block_kinds,
            [self.space.steps[first].row.layer is not None for first, _ in self.space.blocks],
            self.options.recompute and memory.anything,
            self.options.templates,
        )
        _, price, choices = cheapest(chain.run())
        return FoundAt.of(priced, chain, links(choices), price)

    def _program(self, found: FoundAt, bound_s: float | None) -> FoundProgram:
        program = FoundChoices(found.priced, found.choices()).program(self.stats, bound_s)
        return replace(program, considered=Considered(found.chain, self.space, self.machine))


def search(
    graph: LogicalGraph | SearchSpace,
    machine: SearchMachine,
    options: SearchOptions | None = None,
    facts: GraphFacts | None = None,
    near: float = 0.0,
) -> FoundProgram:
    """The cheapest program of a graph on a machine.

    graph: or its space, which searches on several machines share. near: the `memory_s` of a program that was
    found on a machine much like it, which makes this search shorter. Raises HspmdError where nothing fits.
    """
    space = graph if isinstance(graph, SearchSpace) else SearchSpace.of(graph, facts)
    with without_collection():
        return GroupSearch(space, machine, options or SearchOptions(), near).run()
