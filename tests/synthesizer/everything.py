"""The cheapest program of a small space by trying all of them, without tables, states or dominance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from hspmd_compiler.synthesizer.machine import SearchMachine
from hspmd_compiler.synthesizer.moves import move
from hspmd_compiler.synthesizer.options import SearchOptions
from hspmd_compiler.synthesizer.param_prices import ParamPrices
from hspmd_compiler.synthesizer.row_prices import RowPrices
from hspmd_compiler.synthesizer.space.codes import PENDING, meets
from hspmd_compiler.synthesizer.space.expressible import is_run
from hspmd_compiler.synthesizer.space.row_ways import value_bytes
from hspmd_compiler.synthesizer.space.search_space import SearchSpace
from hspmd_compiler.synthesizer.static_tables import at_vertex

LAST = 3
Tried = tuple[tuple[int, ...], float, float]
"""(codes of the results, price, bytes)."""


@dataclass(slots=True)
class Everything:
    """Recursion over the steps. held: the code of every value so far. best: by bytes the least price."""

    space: SearchSpace
    machine: SearchMachine
    held: dict[int, int] = field(default_factory=dict)
    best: dict[int, float] = field(default_factory=dict)
    prices: RowPrices = field(init=False)
    _alone: dict[tuple[int, bool], list[tuple[int, float, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prices = RowPrices(self.space.works, self.machine)

    def run(self, number: int = 0, price: float = 0.0, size: float = 0.0) -> None:
        """All programs that begin with what is held."""
        if number == len(self.space.steps):
            if self.held[self.space.graph.loss] in range(LAST):
                rounded = round(size)
                self.best[rounded] = min(price, self.best.get(rounded, float("inf")))
            return
        for gives, more, bytes_more in self._ways(number):
            results = self.space.steps[number].results
            self.held.update(zip(results, gives, strict=True))
            self.run(number + 1, price + more, size + bytes_more)

    def _ways(self, number: int) -> Iterator[Tried]:
        step = self.space.steps[number]
        if step.starts:
            for code, price, size in self._static(step.row.id):
                yield (code,), price, size
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
                    price += self.prices.gathered_s(way, vertex) if whole else 0.0
                    given = [
                        [(more, size) for code, more, size in self._static(value, factors) if code == need]
                        for value, need in alone
                    ]
                    for held in product(*(pareto(one) for one in given)):
                        more, size = (sum(one[part] for one in held) for part in (0, 1))
                        yield from self._moved(number, gives, price + more, size)

    def _product(self, value: int) -> int | None:
        """The kind of row that makes the gradient of the parameter that a value is made of."""
        while value in self.space.walk.alone:
            (value,) = self.space.walk.alone[value][1]
        return self.space.products.get(value)

    def _moved(self, number: int, gives: tuple[int, ...], price: float, size: float) -> Iterator[Tried]:
        step = self.space.steps[number]
        yield gives, price, size + self._kept(number, gives)
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
                yield moved, price + found.seconds, size + self._kept(number, moved)

    def _kept(self, number: int, gives: tuple[int, ...]) -> float:
        """Bytes that backward reads, on the only kind of device."""
        saved = self.space.places[number].saved
        return sum(
            size / (self.machine.ranks if code >= LAST else 1)
            for size, code in zip(saved, gives, strict=True)
        )

    def _static(self, value: int, factors: bool = False) -> list[tuple[int, float, float]]:
        """(code, price, bytes) of what is made of parameters. factors: with gradients made of them."""
        if (value, factors) not in self._alone:
            self._alone[value, factors] = list(self._tried(value, factors))
        return self._alone[value, factors]

    def _tried(self, value: int, factors: bool) -> Iterator[tuple[int, float, float]]:
        walk, row = self.space.walk, self.space.graph.rows[value]
        if value not in walk.alone:
            info = self.space.graph.params[row.origin.name]
            made = factors and value in self.space.products
            prices = ParamPrices(self.machine, SearchOptions())
            for way in prices.ways(info, walk.param_places(value), factors=made):
                if way.factors == made:
                    yield way.code, way.seconds, way.held[0]
            return
        _, (operand,), ways_of = walk.alone[value]
        vertices = len(self.machine.vertices)
        for way in ways_of:
            for vertex in range(vertices):
                need, give = (at_vertex(c, vertex, vertices) for c in (*way.needs, *way.gives))
                own = self.prices.seconds(row, way, vertex)
                for code, price, size in self._static(operand, factors):
                    if give != PENDING and code == need:
                        yield give, own + price, size


def pareto(pairs: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of (price, bytes) those that no other is below."""
    return [
        one
        for number, one in enumerate(pairs)
        if not any(
            other[0] <= one[0] and other[1] <= one[1] and (other != one or place < number)
            for place, other in enumerate(pairs)
            if place != number
        )
    ]


def cheapest_of_all(space: SearchSpace, machine: SearchMachine) -> float:
    """Seconds of the cheapest program."""
    return frontier_of_all(space, machine)[-1][1]


def frontier_of_all(space: SearchSpace, machine: SearchMachine) -> list[tuple[int, float]]:
    """(bytes, seconds) of all programs that no other is below, the smallest first."""
    found = Everything(space, machine)
    found.run()
    kept: list[tuple[int, float]] = []
    for size, price in sorted(found.best.items()):
        if not kept or price < kept[-1][1]:
            kept.append((size, price))
    return kept
