"""From the choices of a search to the program that it found, with its price in parts and its memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..ir.own_names import ANCHOR
from ..layout.shares import assign_units
from .hidden_sums import HiddenSums, StepSeconds
from .param_prices import ZERO_STATE, ParamWay
from .planner.input_cuts import input_cuts
from .priced_steps import PricedSteps, StepChoice
from .space.codes import REPLICATE, cut_of, is_cut, type_of
from .space.cuts import ValueCut
from .space.forward_rows import RowStep
from .space.movable import maker
from .space.row_ways import NOTHING
from .space.search_space import SearchSpace
from .static_tables import StaticWay, products_of
from .value_types import FoundExchange, FoundProgram, Holding, ParamChoice, ValueType


@dataclass(slots=True)
class FoundChoices:
    """What was chosen, in row order: (place of the step, choice, whether it is computed again).

    sums: of steps where any are. zero: the greatest level of a parameter.
    """

    priced: PricedSteps
    choices: Sequence[tuple[int, StepChoice, bool]]
    params: dict[str, ParamChoice] = field(default_factory=dict)
    exchanges: list[FoundExchange] = field(default_factory=list)
    compute_s: float = 0.0
    exchange_s: float = 0.0
    gradient_s: float = 0.0
    held: list[float] = field(default_factory=list)
    sums: list[StepSeconds] = field(default_factory=list)
    zero: int = 0
    _sums_s: float = 0.0
    _backward_s: float = 0.0

    def program(self, stats: Mapping[str, int], bound_s: float, hidden: HiddenSums) -> FoundProgram:
        """The program with its parts."""
        machine = self.priced.prices.machine
        self.totals()
        self.gradient_s -= self.hidden_s(hidden)
        price = self.compute_s + self.exchange_s + self.gradient_s
        space = self.priced.space
        again_layers = {space.steps[place].row.layer for place, _, again in self.choices if again}
        return FoundProgram(
            ranks=machine.ranks,
            by_stage=not machine.is_even,
            params=tuple(self.params.values()),
            exchanges=tuple(self.exchanges),
            price_s=price,
            compute_s=self.compute_s,
            exchange_s=self.exchange_s,
            gradient_s=self.gradient_s,
            bound_s=min(bound_s, price),
            memory_bytes=tuple(map(round, self.held)),
            stats=dict(stats),
            whole=tuple(space.walk.ways.unruled),
            made_whole=dict(_made_whole(space)),
            recompute=tuple(sorted(layer for layer in again_layers if layer is not None)),
            inputs=input_cuts(space, machine, self.choices),
        )

    def hidden_s(self, hidden: HiddenSums) -> float:
        """Seconds of sums that backward passes go on beside."""
        if not hidden.hides or self.zero > ZERO_STATE:
            return 0.0
        return sum(one.sums_s for one in self.sums) - max(0.0, *hidden.exposed(self.sums))

    def totals(self) -> tuple[float, tuple[float, ...]]:
        """Seconds, sums of gradients one after the other, and bytes on each lane."""
        self.held = [0.0] * len(self.priced.prices.machine.lanes)
        count = self.priced.prices.machine.micro_batches
        for place, chosen, again in self.choices:
            self._sums_s = self._backward_s = 0.0
            self._step(self.priced.space.steps[place], place, chosen, again)
            if self._sums_s or self._backward_s:
                self.sums.append(StepSeconds(place, self._sums_s, self._backward_s / count))
        return self.compute_s + self.exchange_s + self.gradient_s, tuple(self.held)

    def _step(self, step: RowStep, place: int, chosen: StepChoice, again: bool) -> None:
        prices = self.priced.prices
        if chosen.way is None:
            self._param(step.row.id, chosen.statics[0])
            return
        whole = products_of(chosen.statics)
        self.compute_s += prices.seconds(step.row, chosen.way, chosen.vertex, whole)
        self._backward_s += prices.backward_seconds(step.row, chosen.way, chosen.vertex, whole)
        if again:
            forward_s = prices.forward_seconds(step.row, chosen.way, chosen.vertex)
            self.compute_s += forward_s
            self._backward_s += forward_s
        for value, static in zip(step.statics, chosen.statics, strict=True):
            self._static(value, static)
        self.gradient_s += self.priced.gathered_s(chosen)
        if chosen.before != chosen.after:
            self._exchange(step, chosen, again)
        if not again:
            self._keep(place, chosen)

    def _static(self, value: int, found: StaticWay) -> None:
        """A value of parameters alone, from its parameters on."""
        if found.param is not None:
            self._param(value, found)
            return
        row, operands, _ = self.priced.space.walk.alone[value]
        assert found.way is not None, "made of others by a way"
        self.compute_s += self.priced.prices.seconds(row, found.way, found.vertex)
        for operand, one in zip(operands, found.operands, strict=True):
            self._static(operand, one)

    def _param(self, value: int, found: StaticWay) -> None:
        way = found.param
        assert way is not None, "a parameter"
        row = self.priced.space.graph.rows[value]
        cuts = self.priced.space.walk.ways.cuts(value)
        self.gradient_s += way.seconds
        self._sums_s += way.summed_s
        self.zero = max(self.zero, way.zero)
        self.held = [one + more for one, more in zip(self.held, way.held, strict=True)]
        name = row.origin.name
        held_type = param_type(way, cuts, self._vertices)
        shares = self._shares(way.code, cuts)
        self.params[name] = ParamChoice(name, held_type, shares, way.zero or None, way.seconds)

    def _exchange(self, step: RowStep, chosen: StepChoice, again: bool) -> None:
        machine = self.priced.prices.machine
        value = step.results[0]
        row = self.priced.space.graph.rows[value]
        cuts = self.priced.space.walk.ways.cuts(value)
        found = self.priced.move_of(value, chosen.before, chosen.after)
        assert found is not None, "a move that was chosen"
        price = found.seconds + (found.forward_s if again else 0.0)
        self.exchange_s += price
        self._backward_s += found.backward_s + (found.forward_s if again else 0.0)
        before, after = (type_of(code, cuts, self._vertices) for code in (chosen.before, chosen.after))
        shares = self._shares(chosen.after, cuts)
        name = anchor_of(step)
        assert machine.ranks > 1, "one rank moves nothing"
        self.exchanges.append(
            FoundExchange(name, row.id, before, after, shares, price, found.forward, found.backward)
        )

    def _keep(self, number: int, chosen: StepChoice) -> None:
        space = self.priced.space
        place, step = space.places[number], space.steps[number]
        assert chosen.way is not None, "a row"
        gives = [chosen.after, *self._gives(chosen)[1:]]
        static = self.priced.prices.is_static(step.row)
        for size, code, value in zip(place.saved, gives, step.results, strict=True):
            if size:
                self._hold(size, self.priced.parts(code, space.walk.ways.cuts(value), static=static))
        if place.beside:
            code = self.priced.first_cut + chosen.vertex if chosen.way.shared else REPLICATE
            self._hold(place.beside, self.priced.parts(code))

    def _gives(self, chosen: StepChoice) -> list[int]:
        assert chosen.way is not None, "a row"
        return [self.priced.at(code, chosen.vertex) for code in chosen.way.gives]

    def _hold(self, size: int, parts: Sequence[float]) -> None:
        self.held = [one + size * part for one, part in zip(self.held, parts, strict=True)]

    def _shares(self, code: int, cuts: tuple[ValueCut, ...]) -> tuple[int, ...] | None:
        """Units of each rank."""
        if not is_cut(code):
            return None
        place, vertex = cut_of(code, self._vertices)
        return assign_units(cuts[place].units, self.priced.prices.machine.vertices[vertex])

    @property
    def _vertices(self) -> int:
        return len(self.priced.prices.machine.vertices)


def _made_whole(space: SearchSpace) -> Iterator[tuple[str, str]]:
    """Names of places where values may move that an operator without a rule makes, with its name."""
    unruled = set(space.walk.ways.unruled)
    for name, place in anchors(space.steps) if unruled else ():
        row = space.steps[place].row
        made_by = maker(space.walk, space.walk.facts.facts.operands[row.id][0]) if row.op == ANCHOR else row
        if made_by.id in unruled:
            yield name, made_by.op


def param_type(way: ParamWay, cuts: tuple[ValueCut, ...], vertices: int) -> ValueType:
    """How a parameter is held in a way."""
    return ValueType(Holding.FACTORS) if way.factors else type_of(way.code, cuts, vertices)


def anchor_of(step: RowStep) -> str:
    """The name of the place where a step's value may move."""
    if step.row.op == ANCHOR:
        return str(step.row.args[1])
    return f"{step.row.module}.{step.row.op.split('.')[1]}" if "." in step.row.op else step.row.module


def anchors(steps: Sequence[RowStep]) -> Iterator[tuple[str, int]]:
    """Names of all places where values may move, with the places of their steps."""
    for place, step in enumerate(steps):
        if step.moves and step.results[0] != NOTHING:
            yield anchor_of(step), place
