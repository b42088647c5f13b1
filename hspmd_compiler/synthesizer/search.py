"""The search of one group of machines: the cheapest program of the space, that fits.

Variables, objective and states are in `dynamic_program.py`. Constraint: what each device holds, parameters
with gradients and optimizer state, and what backward reads, is no more than its memory. `fit.py` looks for a
program that fits where the cheapest does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..base.collection import without_collection
from ..errors import HspmdError, InternalError
from ..ir.graph import LogicalGraph
from ..passes.deduction.placement import GraphFacts
from .balanced_sums import balance
from .block_chain import BlockChain
from .considered import Considered
from .dynamic_program import Frontier, cheapest, links
from .fit import Fitting, FoundAt
from .found import FoundChoices
from .hidden_sums import HiddenSums, RunWeights, SumWeight
from .machine import SearchMachine
from .options import MemoryPrices, SearchOptions
from .param_prices import ZERO_STATE
from .priced_steps import PricedSteps
from .row_prices import RowPrices
from .space.search_space import SearchSpace
from .value_types import FoundProgram

LITTLE = 0.005
"""Of a step: where memory is short and all sums take less, what hiding them gives is not looked for."""


@dataclass(frozen=True, slots=True)
class SearchedFamily:
    """Programs that are searched together. hides: whether backward passes hide sums in all of them."""

    options: SearchOptions
    hides: bool


@dataclass(frozen=True, slots=True)
class FamilyBest:
    """The quickest program of a family, its bound, what memory was priced at, and the run of gradients that
    would be waited for, were its sums hidden."""

    found: FoundAt
    bound_s: float
    memory_s: float = 0.0
    waited: int = 0


@dataclass(slots=True)
class GroupSearch:
    """Searches of one space on one machine, at any prices of memory. near: as of `search`."""

    space: SearchSpace
    machine: SearchMachine
    options: SearchOptions
    near: float = 0.0
    prices: RowPrices = field(init=False)
    hidden: HiddenSums = field(init=False)
    stats: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.prices = RowPrices(self.space.works, self.machine)
        self.hidden = HiddenSums.of(self.space, self.machine, self.options.bucket_bytes)

    def run(self) -> FoundProgram:
        """The quickest that fits; HspmdError where none does."""
        best: list[FamilyBest] = []
        refused: HspmdError | None = None
        for family in self._families():
            try:
                best.append(self._best(family, best))
            except InternalError:
                raise
            except HspmdError as error:
                refused = error
        if not best:
            assert refused is not None, "there are families"
            raise refused
        chosen = min(best, key=lambda one: one.found.step_s)
        program = self._program(chosen.found, min(one.bound_s for one in best))
        return replace(program, memory_s=chosen.memory_s)

    def _families(self) -> Iterator[SearchedFamily]:
        """With ZeRO of gradients or parameters all gradients are handed over behind the backward pass."""
        levels = self.options.zero
        early = tuple(zero for zero in levels if zero <= ZERO_STATE)
        if not self.hidden.hides or max(levels) > ZERO_STATE:
            yield SearchedFamily(self.options, False)
        if self.hidden.hides and early:
            yield SearchedFamily(replace(self.options, zero=early), True)

    def _best(self, family: SearchedFamily, others: Sequence[FamilyBest]) -> FamilyBest:
        """others: of families with more programs, whose sums are not hidden."""
        free = MemoryPrices((0.0,) * len(self.machine.lanes))
        parts: RunWeights = {}
        if family.hides:
            run = next((other.waited for other in others), 0)
            balanced = balance(lambda parts: self.at(free, family.options, parts), run)
            first, parts, found, bound_s = balanced.of_bound, balanced.parts, balanced.found, balanced.bound_s
        else:
            first = found = self.at(free, family.options)
            bound_s = first.seconds
        if not self.options.memory or found.over <= 0:
            return FamilyBest(found, bound_s, waited=found.waited if self.hidden.hides else 0)
        for other in others:
            if self.hidden.most_s <= LITTLE * other.found.step_s:
                return replace(other, bound_s=max(bound_s, other.bound_s - self.hidden.most_s))
        near = next((other.memory_s for other in others), 0.0) or self.near
        fitting = Fitting(
            self.machine, self.space, lambda memory: self.at(memory, family.options, parts), first, near
        )
        found = first if first.over <= 0 else fitting.run()
        return FamilyBest(found, max(bound_s, fitting.bound_s), fitting.rate)

    def at(self, memory: MemoryPrices, options: SearchOptions, parts: RunWeights | None = None) -> FoundAt:
        """The cheapest at these prices of bytes and weights of sums; none: all count."""
        self.stats["searches"] += 1
        weights = self.hidden.weights(parts) if parts else ()
        priced = PricedSteps(self.space, self.prices, options, memory, weights)
        frontier = Frontier(priced.of_steps, options.dominance, self.stats)
        chain = BlockChain(
            frontier,
            self.space.blocks,
            self.space.regions,
            self._block_kinds(weights),
            [self.space.steps[first].row.layer is not None for first, _ in self.space.blocks],
            options.recompute and memory.anything,
            options.templates,
        )
        _, price, choices = cheapest(chain.run())
        return FoundAt.of(priced, chain, links(choices), price, self.hidden)

    def _block_kinds(self, weights: Sequence[SumWeight]) -> list[int]:
        """The same number for blocks that are alike at these weights."""
        if not weights:
            return self.space.block_kinds
        numbers: dict[object, int] = {}
        found = []
        for kind, (first, last) in zip(self.space.block_kinds, self.space.blocks, strict=True):
            held = tuple(weights[first:last])
            key = kind, held[:1] if len({*held}) == 1 else held
            found.append(numbers.setdefault(key, len(numbers)))
        return found

    def _program(self, found: FoundAt, bound_s: float) -> FoundProgram:
        made = FoundChoices(found.priced, found.choices())
        program = made.program(self.stats, bound_s, self.hidden)
        beside_s = found.step_s - found.seconds
        return replace(program, considered=Considered(found.chain, self.space, self.machine, beside_s))


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
