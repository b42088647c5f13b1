"""Values of parameters alone that one row reads: the cheapest way to have each in each type."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .options import MemoryPrices, SearchOptions
from .param_prices import ParamPrices, ParamWay
from .row_prices import RowPrices
from .space.codes import FIRST_CUT, cut_code
from .space.row_ways import RowWay
from .space.search_space import SearchSpace


class StaticWay(NamedTuple):
    """How a value of parameters alone comes about. price: with memory at its price. param: of a parameter;
    else way, by vertex, and those of its operands. sums: what factors would save of its price.
    """

    price: float
    param: ParamWay | None
    way: RowWay | None = None
    vertex: int = 0
    operands: tuple[StaticWay, ...] = ()
    sums: float = 0.0


StaticTable = dict[int, StaticWay]


@dataclass(slots=True)
class StaticTables:
    """Tables of one search, shared by values that are alike. number: of a table, for keys."""

    space: SearchSpace
    prices: RowPrices
    options: SearchOptions
    memory: MemoryPrices
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
        machine = self.prices.machine
        for way in ParamPrices(machine, self.options).ways(info, self.space.walk.param_places(value)):
            price = way.objective(self.memory)
            if way.code not in made or price < made[way.code].price:
                made[way.code] = StaticWay(price, way, sums=way.reduce_s)
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
                price = sum(one.price for one in held) + self.prices.seconds(row, way, vertex)
                give = at_vertex(way.gives[0], vertex, vertices)
                if give not in made or price < made[give].price:
                    sums = held[0].sums if len(held) == 1 else 0.0
                    made[give] = StaticWay(price, None, way, vertex, held, sums)
        return made


def at_vertex(code: int, vertex: int, vertices: int) -> int:
    """A code of ways, whose cuts are of no vector yet, by a ratio vector."""
    return code if code < FIRST_CUT else cut_code(code - FIRST_CUT, vertex, vertices)
