"""The space of programs of a graph: all that a search asks of it whatever the machine is.

Programs: every forward row is computed once, in one of its ways; a value changes how it is held where its row
may move, and is held in that way from then on; gradients are dual; parameters are held in one type each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...base.collection import without_collection
from ...cost_models.operator_classes import OperatorClass
from ...ir.graph import LogicalGraph, Phase
from ...passes.deduction.placement import GraphFacts
from ..whole_shares import SAMPLES
from .cuts import CutBook, ValueCut, is_identity
from .expressible import is_run
from .forward_rows import ForwardWalk, RowStep, blocks
from .gradient_products import gradient_products
from .regions import StepLiveness, StepPlace, StepRegion, bounds, waists
from .row_ways import NOTHING, RowWay, value_bytes
from .useful import Codes, useful_ways
from .works import WorkBook


@dataclass(slots=True)
class SearchSpace:
    """ways: of each step, those that lead on. wanted: codes of live values that their readers can use.
    products: by row of a parameter the kind of row that makes its gradient, where its factors can be
    gathered. places: of the steps. blocks: [first, last) of runs of steps of a layer, or of none; regions:
    of each; block_kinds: the same number for those that do the same with the values that they touch.
    samples: keys of the atoms that samples are.
    """

    graph: LogicalGraph
    walk: ForwardWalk
    works: WorkBook
    ways: list[tuple[RowWay, ...]]
    wanted: dict[int, Codes]
    products: dict[int, int]
    places: list[StepPlace] = field(default_factory=list)
    blocks: list[tuple[int, int]] = field(default_factory=list)
    regions: list[StepRegion] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    block_kinds: list[int] = field(default_factory=list)
    samples: frozenset[int] = frozenset()
    _numbers: dict[object, int] = field(default_factory=dict)
    _statics: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: LogicalGraph, facts: GraphFacts | None = None) -> SearchSpace:
        """Looks at every row once; searches of one graph on several machines share it."""
        with without_collection():
            return cls._read(graph, facts or GraphFacts.of(graph))

    @classmethod
    def _read(cls, graph: LogicalGraph, facts: GraphFacts) -> SearchSpace:
        book = CutBook.of(graph, facts)
        walk = ForwardWalk.of(graph, book)
        works = WorkBook.of(book)
        ways, wanted = useful_ways(walk)
        space = cls(graph, walk, works, ways, wanted, gradient_products(graph, book.alike))
        space.samples = book.samples
        space.blocks = blocks(walk.steps)
        space._place_steps()
        space.kinds = list(map(space._kind, range(len(space.steps))))
        space.block_kinds = list(map(space._block_kind, range(len(space.blocks))))
        return space

    @property
    def steps(self) -> list[RowStep]:
        """The rows of the walk."""
        return self.walk.steps

    def units_of(self, cut: ValueCut) -> int:
        """What a cut's pieces are handed out in, as `whole_shares` has it."""
        return SAMPLES if cut.key in self.samples else cut.units

    def holds_samples(self, cuts: Sequence[ValueCut], cut: ValueCut) -> bool:
        """Whether each unit of a cut has all samples, so that those of a micro-batch lie among others: where
        a step has several, no layout splits such a dim."""
        return any(one.dim == cut.dim and one.key in self.samples and one.repeats > 1 for one in cuts)

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
                self.walk.facts.alike[value],
                id(ways),
                id(self.works.backward.get(value)),
                tuple(map(self.static_kind, operands)),
            )
        info = self.graph.params[row.origin.name]
        cuts = tuple((cut.dim, cut.units, cut.repeats, cut.inner) for cut in self.walk.ways.cuts(value))
        held = (info.shape, info.dtype, info.trainable, self.products.get(value))
        return *held, cuts, self.walk.param_places(value)

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _kind(self, number: int) -> int:
        """The same number for steps that are alike on every machine."""
        step, place = self.steps[number], self.places[number]
        cuts = self.walk.ways.cuts(step.results[0]) if step.moves else ()
        key = (
            self.walk.facts.alike[step.row.id],
            self.walk.facts.facts.kinds.static[step.row.id],
            id(self.ways[number]),
            id(self.works.backward.get(step.row.id)),
            tuple(map(self.static_kind, step.statics)),
            step.order,
            step.starts,
            self.wanted.get(step.results[0]) if step.moves else None,
            tuple(
                (cut.dim, cut.repeats, is_run(cut), self.holds_samples(cuts, cut), self.units_of(cut))
                for cut in cuts
            ),
            (place.gives, place.saved, place.beside),
        )
        return self._number(key)

    def _block_kind(self, number: int) -> int:
        first, last = self.blocks[number]
        return self._number((tuple(self.kinds[first:last]), self._shape(self.regions[number])))

    def _shape(self, region: StepRegion) -> object:
        """What a region does with the values that it touches; those beside them count for nothing."""
        if region.parts:
            return tuple((part.take, part.keep, self._shape(part)) for part in region.parts)
        return tuple((one.take, one.keep, one.gives) for one in region.places)

    def _place_steps(self) -> None:
        live = self._liveness()
        saved, beside = self._saved()
        for start, _ in self.blocks:
            saved |= set(live.lives[start])  # what a layer reads is kept, as it may be computed again from it
        rows = self.graph.rows
        for number, step in enumerate(self.steps):
            sizes = [
                value_bytes(rows[value]) if value in saved and not step.starts else 0
                for value in step.results
            ]
            self.places.append(live.place(number, sizes, beside.get(step.row.id, 0)))
        self.regions = [self._region(live, *block) for block in self.blocks]

    def _region(self, live: StepLiveness, first: int, last: int) -> StepRegion:
        """A block, cut at its waists and where values may move."""
        parts = bounds(first, last, [step.moves for step in self.steps[first:last]])
        halves = waists(parts, [len(live.lives[end]) for _, end in parts])
        return live.region(first, last, (halves, parts))

    def _liveness(self) -> StepLiveness:
        last_read: dict[int, int] = {self.graph.loss: len(self.steps)}
        for number, step in enumerate(self.steps):
            last_read |= dict.fromkeys(step.actives, number)
        live: tuple[int, ...] = ()
        lives = [live]
        for number, step in enumerate(self.steps):
            values = (*live, *(value for value in step.results if value != NOTHING))
            live = tuple(value for value in values if last_read.get(value, -1) > number)
            lives.append(live)
        return StepLiveness(
            [step.actives for step in self.steps],
            [step.results for step in self.steps],
            dict(enumerate(lives)),
        )

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
