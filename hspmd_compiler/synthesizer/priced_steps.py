"""Steps of a walk with prices on one machine: what each step gives for the codes of what it reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..rules.call_rule import has_fractions
from .hidden_sums import SERIES, SumWeight
from .moves import FREE, TypeMove, move
from .options import MemoryPrices, SearchOptions
from .row_prices import RowPrices
from .space.codes import FIRST_CUT, REPLICATE, WHOLE, cut_of, is_cut, meets, serves
from .space.cuts import ValueCut
from .space.expressible import is_run
from .space.forward_rows import RowStep
from .space.regions import StepPlace
from .space.row_ways import NOTHING, RowWay, value_bytes
from .space.search_space import SearchSpace
from .static_tables import StaticTables, StaticWay, at_vertex, factored, products_of
from .whole_shares import ANY, Shares


class StepChoice(NamedTuple):
    """What a step does. way: None where a parameter starts to live. statics: how what is made of parameters
    comes about. before, after: of a result that moves."""

    way: RowWay | None
    vertex: int
    statics: tuple[StaticWay, ...]
    before: int
    after: int


class StepOutcome(NamedTuple):
    """Codes of the results that live on, the price, and what was chosen."""

    gives: tuple[int, ...]
    price: float
    chosen: StepChoice


@dataclass(slots=True)
class PricedWay:
    """A way by one ratio vector. cut: whether something made of parameters is cut. again: seconds of its
    forward half, computed again under recomputing."""

    needs: tuple[int, ...]
    gives: tuple[int, ...]
    cut: bool
    price: float
    again: float
    chosen: StepChoice


@dataclass(slots=True)
class PricedStep:
    """A step on a machine; steps that are alike share it.

    targets: codes that a result may move to, none where it may not. stays: that it may have without.
    hides: the part of its backward half that is counted less, since sums go on beside it.
    """

    ways: tuple[PricedWay, ...]
    targets: tuple[int, ...]
    stays: frozenset[int]
    moves: dict[tuple[int, int], TypeMove | None]
    saved: dict[tuple[int, int], float]
    beside: tuple[float, float]
    gives: tuple[int, ...]
    dominance: bool = True
    hides: float = 0.0
    _known: dict[tuple[tuple[int, ...], bool, int], tuple[StepOutcome, ...]] = field(default_factory=dict)

    def outcomes(
        self, held: tuple[int, ...], *, recomputed: bool = False, only: int = NOTHING
    ) -> tuple[StepOutcome, ...]:
        """What may come of operands that are held so, in the order of ways.

        recomputed: the row is computed again in backward, and nothing of it is kept. only: the code that its
        first result must have, or that its only parameter must.
        """
        key = (held, recomputed, only)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._outcomes(held, recomputed, only)
        return found

    def _outcomes(self, held: tuple[int, ...], recomputed: bool, only: int) -> tuple[StepOutcome, ...]:
        best: dict[tuple[int, ...], StepOutcome] = {}
        for way in self.ways:
            if not meets(held, way.needs, cut=way.cut):
                continue
            again = way.again * (1.0 - self.hides)
            price = way.price + (again if recomputed else self.beside[is_cut_way(way)])
            for after in self._after(way.gives[0] if way.gives else NOTHING):
                if only not in (NOTHING, after):
                    continue
                found = self._moved(way, after, price, recomputed)
                if found is not None and (found.gives not in best or found.price < best[found.gives].price):
                    best[found.gives] = found
        made = list(best.values())
        if not self.dominance:
            return tuple(made)
        return tuple([one for one in made if not any(_better(other, one) for other in made)])

    def _after(self, code: int) -> tuple[int, ...]:
        """The codes that a result with this one may have in the end."""
        if code in self.targets or not (self.targets or self.stays):
            return self.targets or (code,)
        return (code, *self.targets) if code in self.stays else self.targets

    def _moved(self, way: PricedWay, after: int, price: float, recomputed: bool) -> StepOutcome | None:
        before = way.gives[0] if way.gives else NOTHING
        step = FREE if before == after else self.moves.get((before, after))
        if step is None:
            return None
        gives = (after, *way.gives[1:])
        backward_s = step.backward_s + (step.forward_s if recomputed else 0.0)
        price += step.forward_s + backward_s * (1.0 - self.hides)
        if not recomputed:
            price += sum([self.saved.get((place, code), 0.0) for place, code in enumerate(gives)])
        chosen = way.chosen._replace(before=before, after=after)
        return StepOutcome(tuple([gives[place] for place in self.gives]), price, chosen)


def is_cut_way(way: PricedWay) -> bool:
    """Whether ranks share the row's work."""
    return way.chosen.way is not None and way.chosen.way.shared


def _better(one: StepOutcome, other: StepOutcome) -> bool:
    """Whether one serves wherever the other does, for less, or for as much if it serves more."""
    return one.gives != other.gives and one.price <= other.price and all(map(serves, one.gives, other.gives))


@dataclass(slots=True)
class PricedSteps:
    """All steps of a space on one machine. weights: of each step, as `hidden_sums` has them; none: all sums
    of gradients count, and nothing hides them."""

    space: SearchSpace
    prices: RowPrices
    options: SearchOptions
    memory: MemoryPrices
    weights: Sequence[SumWeight] = ()
    statics: dict[float, StaticTables] = field(default_factory=dict)
    of_steps: list[PricedStep] = field(default_factory=list)

    def __post_init__(self) -> None:
        known: dict[tuple[int, SumWeight], PricedStep] = {}
        for number, kind in enumerate(self.space.kinds):
            key = kind, self.weight(number)
            if key not in known:
                known[key] = self._priced(number)
            self.of_steps.append(known[key])

    def weight(self, number: int) -> SumWeight:
        """Of a step."""
        return self.weights[number] if self.weights else SERIES

    def _statics(self, weight: float) -> StaticTables:
        if weight not in self.statics:
            given = self.space, self.prices, self.options, self.memory
            self.statics[weight] = StaticTables(*given, weight)
        return self.statics[weight]

    @property
    def _vertices(self) -> int:
        return len(self.prices.machine.vertices)

    def _priced(self, number: int) -> PricedStep:
        step, ways, place = self.space.steps[number], self.space.ways[number], self.space.places[number]
        weight = self.weight(number)
        statics = self._statics(weight.sums)
        tables = [statics.of(value) for value in step.statics]
        wanted = self.space.wanted.get(step.results[0]) if step.moves else None
        hides = weight.backward / self.prices.machine.micro_batches
        return self._made(step, ways, place, tables, wanted, hides)

    def _made(
        self,
        step: RowStep,
        ways: tuple[RowWay, ...],
        place: StepPlace,
        tables: list[dict[int, StaticWay]],
        wanted: frozenset[int] | None,
        hides: float,
    ) -> PricedStep:
        made = self._started(tables[0]) if step.starts else self._of_ways(step, ways, tables, hides)
        stays = self._expanded(wanted) if step.moves and wanted else ()
        targets = tuple(code for code in stays if self._is_said(step.results[0], code))
        return PricedStep(
            made,
            targets,
            frozenset(stays),
            self._moves(step, made, targets),
            self._saved(step, place),
            self._beside(place),
            place.gives,
            self.options.dominance,
            hides,
        )

    def _started(self, table: dict[int, StaticWay]) -> tuple[PricedWay, ...]:
        return tuple(
            PricedWay((), (code,), False, one.price, 0.0, StepChoice(None, 0, (one,), code, code))
            for code, one in table.items()
        )

    def _of_ways(
        self, step: RowStep, ways: tuple[RowWay, ...], tables: list[dict[int, StaticWay]], hides: float
    ) -> tuple[PricedWay, ...]:
        made: list[PricedWay] = []
        inner = self.prices.machine.ranks > 1
        for way in ways:
            if not inner and any(code != REPLICATE for code in (*way.needs, *way.gives)):
                continue
            for vertex in range(self._vertices if _names_cut(way) else 1):
                made += self._at(step, way, vertex, tables, hides)
        return tuple(made)

    def _at(
        self, step: RowStep, way: RowWay, vertex: int, tables: list[dict[int, StaticWay]], hides: float
    ) -> Iterator[PricedWay]:
        """None where a parameter can't be held so; two where its gradient may be made of factors."""
        needs, given, cut = [NOTHING] * len(step.actives), [], False
        for need, (static, place) in zip(way.needs, step.order, strict=True):
            code = at_vertex(need, vertex, self._vertices)
            if not static:
                needs[place] = code
            elif code in tables[place]:
                given.append(tables[place][code])
                cut = cut or is_cut(code)
            else:
                return
        gives = tuple(at_vertex(give, vertex, self._vertices) for give in way.gives)
        again = self.prices.forward_seconds(step.row, way, vertex) if self.options.recompute else 0.0
        for statics in (given, factored(given) if way.factors else None):
            if statics is None:
                continue
            whole = products_of(statics)
            price = sum(one.price for one in statics) + self.prices.seconds(step.row, way, vertex, whole)
            if hides:
                price -= hides * self.prices.backward_seconds(step.row, way, vertex, whole)
            chosen = StepChoice(way, vertex, tuple(statics), gives[0], gives[0])
            yield PricedWay(tuple(needs), gives, cut, price + self.gathered_s(chosen), again, chosen)

    def gathered_s(self, chosen: StepChoice) -> float:
        """Seconds of gathers of factors."""
        if chosen.way is None or not products_of(chosen.statics):
            return 0.0
        return self.prices.gathered_s(chosen.way, chosen.vertex)

    def _expanded(self, codes: frozenset[int]) -> tuple[int, ...]:
        found = [code for code in sorted(codes) if not is_cut(code)]
        if self.prices.machine.ranks == 1:
            return (REPLICATE,)
        for code in sorted(codes):
            if is_cut(code):
                found += [at_vertex(code, vertex, self._vertices) for vertex in range(self._vertices)]
        return tuple(found)

    def _is_said(self, value: int, code: int) -> bool:
        """Whether a layout at an anchor can ask for a code."""
        if not is_cut(code):
            return True
        cuts = self.space.walk.ways.cuts(value)
        cut = cuts[cut_of(code, self._vertices)[0]]
        machine = self.prices.machine
        several = machine.outer * machine.micro_batches > 1
        return is_run(cut) and not (several and self.space.holds_samples(cuts, cut))

    def _moves(
        self, step: RowStep, ways: tuple[PricedWay, ...], targets: tuple[int, ...]
    ) -> dict[tuple[int, int], TypeMove | None]:
        if not targets:
            return {}
        sources = dict.fromkeys(way.gives[0] for way in ways)
        return {
            (before, after): self.move_of(step.results[0], before, after)
            for before in sources
            for after in targets
        }

    def move_of(self, value: int, before: int, after: int) -> TypeMove | None:
        """What it costs that a live value changes how it is held."""
        row = self.space.graph.rows[value]
        return move(
            self.prices.machine,
            value_bytes(row),
            self.space.walk.ways.cuts(value),
            before,
            after,
            fractions=row.dtype is None or has_fractions(row.dtype),
            static=self.prices.is_static(row),
            samples=self.space.samples,
        )

    def _saved(self, step: RowStep, place: StepPlace) -> dict[tuple[int, int], float]:
        """By (result, code) the price of keeping it for backward."""
        if not self.memory.anything:
            return {}
        found, static = {}, self.prices.is_static(step.row)
        for number, (size, value) in enumerate(zip(place.saved, step.results, strict=True)):
            if size:
                cuts = self.space.walk.ways.cuts(value)
                for code in range(FIRST_CUT + len(cuts) * self._vertices):
                    found[number, code] = self._kept(size, code, cuts, static=static)
        return found

    def _beside(self, place: StepPlace) -> tuple[float, float]:
        if not self.memory.anything or not place.beside:
            return 0.0, 0.0
        return self._kept(place.beside, WHOLE), self._kept(place.beside, FIRST_CUT)

    def _kept(self, size: int, code: int, cuts: Sequence[ValueCut] = (), *, static: bool = False) -> float:
        parts = self.parts(code, cuts, static=static)
        return sum(price * size * part for price, part in zip(self.memory.per_byte_s, parts, strict=True))

    first_cut = FIRST_CUT

    def at(self, code: int, vertex: int) -> int:
        """A code of ways by a ratio vector."""
        return at_vertex(code, vertex, self._vertices)

    def parts(self, code: int, cuts: Sequence[ValueCut] = (), *, static: bool = False) -> tuple[float, ...]:
        """Of the bytes of a value what each lane holds for a micro-batch.

        cuts: of the value, () where its units are not counted. static: of parameters alone.
        """
        machine = self.prices.machine
        shares: Shares = (1.0,) * len(machine.lanes)
        if is_cut(code):
            place, vertex = cut_of(code, self._vertices)
            shares = machine.shares(vertex, self.space.units_of(cuts[place]) if cuts else ANY)
        return tuple(
            share * (1.0 if static else lane.batch / machine.micro_batches)
            for lane, share in zip(machine.lanes, shares, strict=True)
        )


def _names_cut(way: RowWay) -> bool:
    return any(map(is_cut, (*way.needs, *way.gives)))
