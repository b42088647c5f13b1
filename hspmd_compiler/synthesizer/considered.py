"""What the best program costs with another layout at one place, worked out when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from .block_chain import BlockChain
from .dynamic_program import Front, Frontier
from .found import anchors, param_type
from .machine import SearchMachine
from .param_prices import ParamWay
from .priced_steps import PricedWay
from .space.codes import type_of
from .space.search_space import SearchSpace
from .static_tables import StaticWay
from .value_types import ValueType

Ways = tuple[tuple[ValueType, float], ...]


@dataclass(frozen=True, slots=True)
class Considered(Mapping[str, Ways]):
    """By anchor or parameter: each type there, with the price of the cheapest program that has it, cheapest
    first.

    A block is searched again from all states before it, each with what led there, once per type; what leads
    to a state behind it that the search left out is followed to the end. beside_s: of what is left of sums
    behind the backward pass, what the program's own weights of sums do not tell (see `hidden_sums.py`).
    """

    chain: BlockChain
    space: SearchSpace
    machine: SearchMachine
    beside_s: float = 0.0
    _places: dict[str, tuple[int, bool]] = field(default_factory=dict)
    _known: dict[str, Ways] = field(default_factory=dict)

    def _found(self) -> dict[str, tuple[int, bool]]:
        """Per name the place of its step, and whether it is a parameter's."""
        if not self._places:
            self._places.update({name: (place, False) for name, place in anchors(self.space.steps)})
            for place, step in enumerate(self.space.steps):
                for value in step.statics:
                    for name in self._params(value):
                        self._places[name] = (place, True)
        return self._places

    def _params(self, value: int) -> Iterator[str]:
        row = self.space.graph.rows[value]
        if row.op == "placeholder":
            yield row.origin.name
            return
        for operand in self.space.walk.alone[value][1]:
            yield from self._params(operand)

    def __iter__(self) -> Iterator[str]:
        return iter(self._found())

    def __len__(self) -> int:
        return len(self._found())

    def __getitem__(self, name: str) -> Ways:
        if name not in self._known:
            place, is_param = self._found()[name]
            found = self._of_param(place, name) if is_param else self._of_anchor(place)
            self._known[name] = tuple(sorted(found, key=lambda pair: pair[1]))
        return self._known[name]

    def _of_anchor(self, place: int) -> Iterator[tuple[ValueType, float]]:
        step, priced = self.space.steps[place], self.chain.frontier.steps[place]
        cuts = self.space.walk.ways.cuts(step.results[0])
        for code in sorted(priced.stays.union(priced.targets)):
            price = self._through(place, {place: code})
            if price is not None:
                yield type_of(code, cuts, len(self.machine.vertices)), price

    def _of_param(self, place: int, name: str) -> Iterator[tuple[ValueType, float]]:
        """By how the parameter is held in what each way of its step makes of it."""
        row = self.space.graph.params[name].row
        cuts = self.space.walk.ways.cuts(row)
        priced = self.chain.frontier.steps[place]
        kept: dict[ValueType, list[PricedWay]] = {}
        for way in priced.ways:
            for held in held_ways(self.space, place, way.chosen.statics, row):
                kept.setdefault(param_type(held, cuts, len(self.machine.vertices)), []).append(way)
        for kind, ways in kept.items():
            price = self._through(place, {}, tuple(ways))
            if price is not None:
                yield kind, price

    def _through(
        self, place: int, only: dict[int, int], ways: tuple[PricedWay, ...] | None = None
    ) -> float | None:
        """The least price of a program under a restriction at one step."""
        number, _ = next((n, one) for n, one in enumerate(self.chain.blocks) if one[0] <= place < one[1])
        steps = list(self.chain.frontier.steps)
        if ways is not None:
            steps[place] = replace(steps[place], ways=ways, _known={})
        frontier = Frontier(steps, self.chain.frontier.dominance, only=only)
        before = self.chain.fronts[number]
        to_go = self.chain.to_go()[number + 1]
        found: Front = {}
        for again in (False, True) if self.chain.recompute and self.chain.layered[number] else (False,):
            block = frontier.run([self.chain.regions[number]], before, recomputed=again)
            for key, value in block.items():
                if key not in found or value[0] < found[key][0]:
                    found[key] = value
        known = min((price + to_go[key] for key, (price, _) in found.items() if key in to_go), default=None)
        beside = self.chain.least_from(
            number + 1, {key: one for key, one in found.items() if key not in to_go}
        )
        told = [self.beside_s + price for price in (known, beside) if price is not None]
        return min(told, default=None)


def held_ways(space: SearchSpace, place: int, statics: tuple[StaticWay, ...], row: int) -> Iterator[ParamWay]:
    """How a parameter is held in what a way is given."""

    def within(value: int, found: StaticWay) -> Iterator[ParamWay]:
        if found.param is not None:
            if value == row:
                yield found.param
            return
        for operand, one in zip(space.walk.alone[value][1], found.operands, strict=True):
            yield from within(operand, one)

    for value, found in zip(space.steps[place].statics, statics, strict=True):
        yield from within(value, found)
