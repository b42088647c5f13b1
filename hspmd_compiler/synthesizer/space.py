"""The space of programs of a graph: all that a search asks of it whatever the machine is.

Programs: every forward row is computed once, in one of its ways; a value changes how it is held where its row
may move, and is held in that way from then on; gradients are dual; parameters are held in one type each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from ..cost_models.operator_classes import OperatorClass
from ..ir.graph import LogicalGraph, Phase
from ..passes.deduction.placement import GraphFacts
from .cuts import CutBook, is_identity
from .expressible import is_run
from .forward_rows import ForwardWalk, RowStep, blocks
from .row_prices import WorkBook
from .row_ways import NOTHING, RowWay, value_bytes
from .useful import Codes, useful_ways


@dataclass(frozen=True, slots=True)
class StepPlace:
    """A step among the live values. take: places of its operands; keep: of values that stay live behind it;
    gives: which of its results are live then. saved: bytes that backward reads of these; beside: of values
    without a gradient that belong to it."""

    take: tuple[int, ...]
    keep: tuple[int, ...]
    gives: tuple[int, ...]
    saved: tuple[int, ...]
    beside: int


@dataclass(slots=True)
class SearchSpace:
    """ways: of each step, those that lead on. wanted: codes of live values that their readers can use.
    places: of the steps. blocks: [first, last) of runs of steps of a layer, or of none.
    """

    graph: LogicalGraph
    walk: ForwardWalk
    works: WorkBook
    ways: list[tuple[RowWay, ...]]
    wanted: dict[int, Codes]
    places: list[StepPlace] = field(default_factory=list)
    blocks: list[tuple[int, int]] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    block_kinds: list[int] = field(default_factory=list)
    _numbers: dict[object, int] = field(default_factory=dict)
    _statics: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: LogicalGraph, facts: GraphFacts | None = None) -> SearchSpace:
        """Looks at every row once; searches of one graph on several machines share it."""
        book = CutBook.of(graph, facts or GraphFacts.of(graph))
        walk = ForwardWalk.of(graph, book)
        works = WorkBook.of(book)
        ways, wanted = useful_ways(walk)
        space = cls(graph, walk, works, ways, wanted)
        space.blocks = blocks(walk.steps)
        space.places = space._placed()
        space.kinds = list(map(space._kind, range(len(space.steps))))
        space.block_kinds = [space._block_kind(*block) for block in space.blocks]
        return space

    @property
    def steps(self) -> list[RowStep]:
        """The rows of the walk."""
        return self.walk.steps

    def static_kind(self, value: int) -> int:
        """The same number for values of parameters that come about in the same ways, at the same prices."""
        found = self._statics.get(value)
        if found is None:
            found = self._statics[value] = self._number(("static", *self._static_key(value)))
        return found

    def _static_key(self, value: int) -> tuple[object, ...]:
        row = self.graph.rows[value]
        if value in self.walk.alone:
            _, operands, ways = self.walk.alone[value]
            return (
                self.walk.facts.facts.signatures[value],
                id(ways),
                id(self.works.backward.get(value)),
                tuple(map(self.static_kind, operands)),
            )
        info = self.graph.params[row.origin.name]
        cuts = tuple((cut.dim, cut.units, cut.repeats, cut.inner) for cut in self.walk.ways.cuts(value))
        return info.shape, info.dtype, info.trainable, cuts, self.walk.param_places(value)

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _kind(self, number: int) -> int:
        """The same number for steps that are alike on every machine."""
        step, place = self.steps[number], self.places[number]
        cuts = self.walk.ways.cuts(step.results[0]) if step.moves else ()
        key = (
            self.walk.facts.facts.signatures[step.row.id],
            id(self.ways[number]),
            id(self.works.backward.get(step.row.id)),
            tuple(map(self.static_kind, step.statics)),
            step.order,
            step.starts,
            self.wanted.get(step.results[0]) if step.moves else None,
            tuple((cut.dim, cut.repeats, is_run(cut)) for cut in cuts),
            (place.gives, place.saved, place.beside),
        )
        return self._number(key)

    def _block_kind(self, first: int, last: int) -> int:
        places = tuple((one.take, one.keep, one.gives) for one in self.places[first:last])
        return self._number((tuple(self.kinds[first:last]), places))

    def _placed(self) -> list[StepPlace]:
        left: dict[int, int] = {}
        for step in self.steps:
            for value in step.actives:
                left[value] = left.get(value, 0) + 1
        saved, beside = self._saved()
        live: list[int] = []
        found: list[StepPlace] = []
        first = {start for start, _ in self.blocks}
        for number, step in enumerate(self.steps):
            if number in first:
                saved |= set(live)
            take = tuple(live.index(value) for value in step.actives)
            for value in step.actives:
                left[value] -= 1
            keep = tuple(place for place, value in enumerate(live) if left[value])
            gives = tuple(
                place
                for place, value in enumerate(step.results)
                if value != NOTHING and (left.get(value) or value == self.graph.loss)
            )
            live = [live[place] for place in keep] + [step.results[place] for place in gives]
            found.append(StepPlace(take, keep, gives, (), 0))
        return [
            self._with_saved(place, step, saved, beside)
            for place, step in zip(found, self.steps, strict=True)
        ]

    def _with_saved(
        self, place: StepPlace, step: RowStep, saved: set[int], beside: dict[int, int]
    ) -> StepPlace:
        rows = self.graph.rows
        sizes = tuple(
            value_bytes(rows[value]) if value in saved and not step.starts else 0 for value in step.results
        )
        return StepPlace(place.take, place.keep, place.gives, sizes, beside.get(step.row.id, 0))

    def _saved(self) -> tuple[set[int], dict[int, int]]:
        """Values that backward reads, by the row that makes their memory; and bytes of others by reader."""
        rows, operands = self.graph.rows, self.walk.facts.facts.operands
        read = {
            value
            for row in rows
            if row.phase is Phase.BACKWARD
            for value in operands[row.id]
            if rows[value].phase is Phase.FORWARD
        }
        pure = self.walk.facts.facts.kinds.pure
        walked = {value for step in self.steps for value in step.results}
        roots = {self._root(value) for value in read}
        beside: dict[int, int] = {}
        for root in roots - walked:
            if pure[root] and rows[root].op != "placeholder":
                reader = next((r for r in self.walk.readers.get(root, ()) if not pure[r]), None)
                if reader is not None:
                    beside[reader] = beside.get(reader, 0) + value_bytes(rows[root])
        return roots & walked, beside

    def _root(self, value: int) -> int:
        """The row whose memory a view shows."""
        rows, operands = self.graph.rows, self.walk.facts.facts.operands
        while True:
            row = rows[value]
            if row.op in ("placeholder", "getitem") or is_identity(row.op) or not operands[value]:
                return value
            if self.works.work(row).of is not OperatorClass.VIEW:
                return value
            value = operands[value][0]


def picker(places: Sequence[int]) -> Any:
    """A quick way to take these places of a tuple, as a tuple."""
    if not places:
        return lambda key: ()
    if len(places) == 1:
        (place,) = places
        return lambda key: (key[place],)
    return itemgetter(*places)
