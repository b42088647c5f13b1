"""The cheapest program of a small space by trying all of them, without tables, states or dominance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from operator import le
from typing import NamedTuple

from hspmd_compiler.synthesizer.hidden_sums import HiddenSums
from hspmd_compiler.synthesizer.machine import SearchMachine
from hspmd_compiler.synthesizer.moves import move
from hspmd_compiler.synthesizer.options import SearchOptions
from hspmd_compiler.synthesizer.param_prices import ZERO_STATE, ParamPrices
from hspmd_compiler.synthesizer.row_prices import RowPrices
from hspmd_compiler.synthesizer.space.codes import PENDING, meets
from hspmd_compiler.synthesizer.space.expressible import is_run
from hspmd_compiler.synthesizer.space.row_ways import value_bytes
from hspmd_compiler.synthesizer.space.search_space import SearchSpace
from hspmd_compiler.synthesizer.static_tables import at_vertex

LAST = 3


class Cost(NamedTuple):
    """Seconds beside sums of gradients, these, bytes, whether all gradients are handed over at the end, and
    what of the seconds is a backward half that sums may go on beside."""

    price: float = 0.0
    summed: float = 0.0
    size: float = 0.0
    late: bool = False
    backward: float = 0.0

    def plus(self, *others: Cost) -> Cost:
        every = (self, *others)
        price, summed, size, _, backward = (sum(part) for part in zip(*every, strict=True))
        return Cost(price, summed, size, any(one.late for one in every), backward)


Tried = tuple[tuple[int, ...], Cost]
"""Codes of the results, and what a step costs."""


@dataclass(slots=True)
class Everything:
    """Recursion over the steps. held: the code of every value so far. best: by bytes the least price."""

    space: SearchSpace
    machine: SearchMachine
    options: SearchOptions = field(default_factory=SearchOptions)
    held: dict[int, int] = field(default_factory=dict)
    best: dict[int, float] = field(default_factory=dict)
    prices: RowPrices = field(init=False)
    hidden: HiddenSums = field(init=False)
    _alone: dict[tuple[int, bool], list[tuple[int, Cost]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prices = RowPrices(self.space.works, self.machine)
        self.hidden = HiddenSums.of(self.space, self.machine, self.options.bucket_bytes)

    def run(self, costs: tuple[Cost, ...] = ()) -> None:
        """All programs that begin with what is held. costs: of each step so far."""
        number = len(costs)
        if number == len(self.space.steps):
            if self.held[self.space.graph.loss] in range(LAST):
                rounded = round(sum(one.size for one in costs))
                self.best[rounded] = min(self._seconds(costs), self.best.get(rounded, float("inf")))
            return
        for gives, cost in self._ways(number):
            results = self.space.steps[number].results
            self.held.update(zip(results, gives, strict=True))
            self.run((*costs, cost))

    def _seconds(self, costs: tuple[Cost, ...]) -> float:
        """Sums by the clock, from the last step's on: a run starts when its first step's backward is over."""
        seconds = sum(one.price for one in costs)
        if not self.hidden.hides or any(one.late for one in costs):
            return seconds + sum(one.summed for one in costs)
        done, free, at = 0.0, 0.0, len(costs)
        for run in reversed(self.hidden.runs):
            done += sum(one.backward for one in costs[run.first : at])
            at = run.first
            free = max(free, done) + sum(one.summed for one in costs[run.first : run.last + 1])
        return seconds + max(0.0, free - done)

    def _ways(self, number: int) -> Iterator[Tried]:
        step = self.space.steps[number]
        if step.starts:
            for code, cost in self._static(step.row.id):
                yield (code,), cost
            return
        vertices = len(self.machine.vertices)
        for way in step.ways:
            for vertex in range(vertices):
                needs = [at_vertex(code, vertex, vertices) for code in way.needs]
                pairs = list(zip(needs, step.order, strict=True))
                held = [self.held[step.actives[place]] for _, (alone, place) in pairs if not alone]
                wanted = [need for need, (alone, _) in pairs if not alone]
                if not meets(held, wanted, cut=any(alone and need >= LAST for need, (alone, _) in pairs)):
                    continue
                alone = [(step.statics[place], need) for need, (static, place) in pairs if static]
                gives = tuple(at_vertex(code, vertex, vertices) for code in way.gives)
                for factors in (False, True) if way.factors else (False,):
                    made = {self._product(value) for value, _ in alone if factors}
                    whole = frozenset(one for one in made if one is not None)
                    price = self.prices.seconds(step.row, way, vertex, whole)
                    backward = price - self.prices.forward_seconds(step.row, way, vertex)
                    price += self.prices.gathered_s(way, vertex) if whole else 0.0
                    given = [
                        [cost for code, cost in self._static(value, factors) if code == need]
                        for value, need in alone
                    ]
                    for costs in product(*(self._pareto(one) for one in given)):
                        yield from self._moved(number, gives, Cost(price, backward=backward).plus(*costs))

    def _pareto(self, costs: list[Cost]) -> list[Cost]:
        """Those that no other is below."""
        if self.hidden.hides:
            return pareto(costs, lambda one: one[:4])
        return pareto(costs, lambda one: (one.price + one.summed, one.size))

    def _product(self, value: int) -> int | None:
        """The kind of row that makes the gradient of the parameter that a value is made of."""
        while value in self.space.walk.alone:
            (value,) = self.space.walk.alone[value][1]
        return self.space.products.get(value)

    def _moved(self, number: int, gives: tuple[int, ...], cost: Cost) -> Iterator[Tried]:
        step = self.space.steps[number]
        yield gives, cost.plus(Cost(size=self._kept(number, gives)))
        if not step.moves:
            return
        row = self.space.graph.rows[step.results[0]]
        cuts = self.space.walk.ways.cuts(row.id)
        for after in range(LAST + len(cuts) * len(self.machine.vertices)):
            static = self.space.walk.facts.facts.kinds.static[row.id]
            found = move(self.machine, value_bytes(row), cuts, gives[0], after, fractions=True, static=static)
            said = after < LAST or is_run(cuts[(after - LAST) // len(self.machine.vertices)])
            if found is not None and after != gives[0] and said:
                moved = (after, *gives[1:])
                kept = self._kept(number, moved)
                yield moved, cost.plus(Cost(found.seconds, size=kept, backward=found.backward_s))

    def _kept(self, number: int, gives: tuple[int, ...]) -> float:
        """Bytes that backward reads, on the only kind of device."""
        saved = self.space.places[number].saved
        return sum(
            size / (self.machine.ranks if code >= LAST else 1)
            for size, code in zip(saved, gives, strict=True)
        )

    def _static(self, value: int, factors: bool = False) -> list[tuple[int, Cost]]:
        """By code the cost of what is made of parameters. factors: with gradients made of them."""
        if (value, factors) not in self._alone:
            self._alone[value, factors] = list(self._tried(value, factors))
        return self._alone[value, factors]

    def _tried(self, value: int, factors: bool) -> Iterator[tuple[int, Cost]]:
        walk, row = self.space.walk, self.space.graph.rows[value]
        if value not in walk.alone:
            info = self.space.graph.params[row.origin.name]
            made = factors and value in self.space.products
            prices = ParamPrices(self.machine, self.options)
            for way in prices.ways(info, walk.param_places(value), factors=made):
                if way.factors == made:
                    seconds = way.seconds - way.summed_s
                    yield way.code, Cost(seconds, way.summed_s, way.held[0], way.zero > ZERO_STATE)
            return
        _, (operand,), ways_of = walk.alone[value]
        vertices = len(self.machine.vertices)
        for way in ways_of:
            for vertex in range(vertices):
                need, give = (at_vertex(c, vertex, vertices) for c in (*way.needs, *way.gives))
                own = self.prices.seconds(row, way, vertex)
                for code, cost in self._static(operand, factors):
                    if give != PENDING and code == need:
                        yield give, cost.plus(Cost(own))


def pareto(costs: list[Cost], key: Callable[[Cost], tuple[float, ...]]) -> list[Cost]:
    """Those that no other is below. key: what counts."""
    found: dict[tuple[float, ...], Cost] = {}
    for cost in costs:
        found.setdefault(key(cost), cost)
    return [
        cost
        for mine, cost in found.items()
        if not any(other != mine and all(map(le, other, mine)) for other in found)
    ]


def cheapest_of_all(
    space: SearchSpace, machine: SearchMachine, options: SearchOptions | None = None
) -> float:
    """Seconds of the cheapest program."""
    return frontier_of_all(space, machine, options)[-1][1]


def frontier_of_all(
    space: SearchSpace, machine: SearchMachine, options: SearchOptions | None = None
) -> list[tuple[int, float]]:
    """(bytes, seconds) of all programs that no other is below, the smallest first."""
    found = Everything(space, machine, options or SearchOptions())
    found.run()
    kept: list[tuple[int, float]] = []
    for size, price in sorted(found.best.items()):
        if not kept or price < kept[-1][1]:
            kept.append((size, price))
    return kept
