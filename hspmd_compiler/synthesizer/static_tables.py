"""Values of parameters alone that one row reads: the cheapest way to have each in each type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .options import MemoryPrices, SearchOptions
from .param_prices import ParamPrices, ParamWay
from .row_prices import RowPrices
from .space.codes import FIRST_CUT, WHOLE, cut_code
from .space.row_ways import RowWay
from .space.search_space import SearchSpace


class StaticWay(NamedTuple):
    """How a value of parameters alone comes about. price: with memory at its price. param: of a parameter;
    else way, by vertex, and those of its operands. factored: the cheapest whose gradient is made of factors.
    products: kinds of the rows that make it so.
    """

    price: float
    param: ParamWay | None
    way: RowWay | None = None
    vertex: int = 0
    operands: tuple[StaticWay, ...] = ()
    factored: StaticWay | None = None
    products: frozenset[int] = frozenset()


StaticTable = dict[int, StaticWay]


@dataclass(slots=True)
class StaticTables:
    """Tables of one search, shared by values that are alike. weight: as of `ParamWay.objective`."""

    space: SearchSpace
    prices: RowPrices
    options: SearchOptions
    memory: MemoryPrices
    weight: float = 1.0
    _known: dict[int, StaticTable] = field(default_factory=dict)

    def of(self, value: int) -> StaticTable:
        """By code."""
        kind = self.space.static_kind(value)
        if kind not in self._known:
            walk = self.space.walk
            if value in walk.alone:
                _, operands, ways = walk.alone[value]
                self._known[kind] = self._of_row(value, ways, [self.of(one) for one in operands])
            else:
                self._known[kind] = self._of_param(value)
        return self._known[kind]

    def _of_param(self, value: int) -> StaticTable:
        row = self.space.graph.rows[value]
        info = self.space.graph.params[row.origin.name]
        made: StaticTable = {}
        product = self.space.products.get(value) if self.options.factors else None
        factored: StaticWay | None = None
        prices = ParamPrices(self.prices.machine, self.options)
        units = [cut.units for cut in self.space.walk.ways.cuts(value)]
        places = self.space.walk.param_places(value)
        for way in prices.ways(info, places, units, factors=product is not None):
            price = way.objective(self.memory, self.weight)
            if way.factors and product is not None:
                if factored is None or price < factored.price:
                    factored = StaticWay(price, way, products=frozenset((product,)))
            elif way.code not in made or price < made[way.code].price:
                made[way.code] = StaticWay(price, way)
        if factored is not None:
            made[WHOLE] = made[WHOLE]._replace(factored=factored)
        return made

    def _of_row(self, value: int, ways: tuple[RowWay, ...], tables: list[StaticTable]) -> StaticTable:
        row = self.space.graph.rows[value]
        vertices = len(self.prices.machine.vertices)
        made: StaticTable = {}
        for way in ways:
            for vertex in range(vertices if way.shared else 1):
                codes = [at_vertex(need, vertex, vertices) for need in way.needs]
                if any(code not in table for code, table in zip(codes, tables, strict=True)):
                    continue
                held = tuple(table[code] for code, table in zip(codes, tables, strict=True))
                own = self.prices.seconds(row, way, vertex)
                price = sum(one.price for one in held) + own
                give = at_vertex(way.gives[0], vertex, vertices)
                if give not in made or price < made[give].price:
                    factored = self._of_factored(way, held, own) if give == WHOLE else None
                    made[give] = StaticWay(price, None, way, vertex, held, factored)
        return made

    def _of_factored(self, way: RowWay, held: tuple[StaticWay, ...], own: float) -> StaticWay | None:
        """Made of one value whose gradient is made of factors."""
        (one, *others) = (each.factored for each in held)
        if one is None or others:
            return None
        return StaticWay(one.price + own, None, way, 0, (one,), None, one.products)


def at_vertex(code: int, vertex: int, vertices: int) -> int:
    """A code of ways, whose cuts are of no vector yet, by a ratio vector."""
    return code if code < FIRST_CUT else cut_code(code - FIRST_CUT, vertex, vertices)


def factored(given: Sequence[StaticWay]) -> list[StaticWay] | None:
    """What a product is given, with gradients made of factors wherever they can be; None where none can."""
    found = [one.factored or one for one in given]
    return found if products_of(found) else None


def products_of(given: Sequence[StaticWay]) -> frozenset[int]:
    """Kinds of the rows that make gradients of gathered factors."""
    return frozenset().union(*(one.products for one in given))
