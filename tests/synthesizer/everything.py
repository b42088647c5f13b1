"""The cheapest program of a small space by trying all of them, without tables, states or dominance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hspmd_compiler.synthesizer.codes import PENDING, serves
from hspmd_compiler.synthesizer.machine import SearchMachine
from hspmd_compiler.synthesizer.moves import move
from hspmd_compiler.synthesizer.options import SearchOptions
from hspmd_compiler.synthesizer.param_prices import ParamPrices
from hspmd_compiler.synthesizer.row_prices import RowPrices
from hspmd_compiler.synthesizer.row_ways import value_bytes
from hspmd_compiler.synthesizer.space import SearchSpace
from hspmd_compiler.synthesizer.static_tables import at_vertex

LAST = 3


@dataclass(slots=True)
class Everything:
    """Recursion over the steps. held: the code of every value so far. seen: complete programs."""

    space: SearchSpace
    machine: SearchMachine
    held: dict[int, int] = field(default_factory=dict)
    least: float = float("inf")
    seen: int = 0

    def run(self, number: int = 0, price: float = 0.0) -> None:
        """All programs that begin with what is held."""
        if number == len(self.space.steps):
            self.seen += 1
            if self.held[self.space.graph.loss] in range(LAST):
                self.least = min(self.least, price)
            return
        for gives, more in self._ways(number):
            results = self.space.steps[number].results
            self.held.update(zip(results, gives, strict=True))
            self.run(number + 1, price + more)

    def _ways(self, number: int) -> Iterator[tuple[tuple[int, ...], float]]:
        step, prices = self.space.steps[number], RowPrices(self.space.works, self.machine)
        if step.starts:
            for code, price in self._static(step.row.id):
                yield (code,), price
            return
        vertices = len(self.machine.vertices)
        for way in step.ways:
            for vertex in range(vertices):
                needs = [at_vertex(code, vertex, vertices) for code in way.needs]
                pairs = list(zip(needs, step.order, strict=True))
                if not all(
                    serves(self.held[step.actives[p]], need) for need, (alone, p) in pairs if not alone
                ):
                    continue
                price = prices.seconds(step.row, way, vertex)
                for need, (alone, place) in pairs:
                    if alone:
                        held = [more for code, more in self._static(step.statics[place]) if code == need]
                        price += min(held, default=float("inf"))
                gives = tuple(at_vertex(code, vertex, vertices) for code in way.gives)
                yield from self._moved(number, gives, price)

    def _moved(
        self, number: int, gives: tuple[int, ...], price: float
    ) -> Iterator[tuple[tuple[int, ...], float]]:
        step = self.space.steps[number]
        yield gives, price
        if not step.moves:
            return
        row = self.space.graph.rows[step.results[0]]
        cuts = self.space.walk.ways.cuts(row.id)
        for after in range(LAST + len(cuts) * len(self.machine.vertices)):
            found = move(self.machine, value_bytes(row), cuts, gives[0], after, fractions=True)
            if found is not None:
                yield (after, *gives[1:]), price + found.seconds

    def _static(self, value: int) -> Iterator[tuple[int, float]]:
        """(code, price) of what is made of parameters."""
        walk, row = self.space.walk, self.space.graph.rows[value]
        if value not in walk.alone:
            info = self.space.graph.params[row.origin.name]
            ways = ParamPrices(self.machine, SearchOptions()).ways(info, walk.ways.cuts(value))
            yield from ((way.code, way.seconds) for way in ways)
            return
        _, (operand,), ways_of = walk.alone[value]
        vertices = len(self.machine.vertices)
        for way in ways_of:
            for vertex in range(vertices):
                need, give = (at_vertex(c, vertex, vertices) for c in (*way.needs, *way.gives))
                own = RowPrices(self.space.works, self.machine).seconds(row, way, vertex)
                if give != PENDING:
                    yield from ((give, own + price) for code, price in self._static(operand) if code == need)


def cheapest_of_all(space: SearchSpace, machine: SearchMachine) -> float:
    """Seconds of the cheapest program."""
    found = Everything(space, machine)
    found.run()
    return found.least
