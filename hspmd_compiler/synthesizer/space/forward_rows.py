"""The forward rows that a search walks: what each reads, what is live behind it, where values may move.

Rows without a gradient are left out: each rank makes of them what it uses. Values of parameters alone that
one row reads are made where they are read; others, and those that may move, are live as activations are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...ir.graph import LogicalGraph, OriginKind, Phase, Row, row_inputs
from ...ir.own_names import ANCHOR
from .cuts import CutBook
from .expressible import Members, is_said, members_of
from .movable import moves
from .row_ways import NOTHING, RowWay, WayBook

GETITEM = "getitem"


@dataclass(slots=True)
class RowStep:
    """One row of the walk.

    actives: operands that are live values, each once. statics: operands made of parameters for this row
    alone. order: of each need of a way, (whether it is of a static, its place among these). results: rows of
    what it gives, NOTHING for what nothing reads. moves: whether its result may move. starts: a static value
    that becomes live here.
    """

    row: Row
    actives: tuple[int, ...]
    statics: tuple[int, ...]
    order: tuple[tuple[bool, int], ...]
    results: tuple[int, ...]
    ways: tuple[RowWay, ...]
    moves: bool
    starts: bool = False


@dataclass(slots=True)
class ForwardWalk:
    """The steps of a graph in order, and its values of parameters alone.

    alone: the way to each static value that one row reads: (row, its operands, ways). wanted: the codes of
    each live value that what reads it can use.
    """

    graph: LogicalGraph
    ways: WayBook
    steps: list[RowStep] = field(default_factory=list)
    alone: dict[int, tuple[Row, tuple[int, ...], tuple[RowWay, ...]]] = field(default_factory=dict)
    uses: Counter[int] = field(default_factory=Counter)
    readers: dict[int, list[int]] = field(default_factory=dict)
    anchored: bool = False
    members: Members = field(default_factory=dict)
    _waiting: dict[int, Row] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: LogicalGraph, book: CutBook) -> ForwardWalk:
        """Walks what the loss depends on."""
        walk = cls(graph, WayBook(book))
        walk.anchored = any(row.op == ANCHOR for row in graph.rows)
        walk.members = members_of(graph, book.facts)
        live = _live(graph)
        rows = [row for row in graph.rows if row.id in live]
        for row in rows:
            for operand in dict.fromkeys(book.facts.operands[row.id]):
                walk.uses[operand] += 1
                walk.readers.setdefault(operand, []).append(row.id)
        for row in rows:
            walk._add(row)
        return walk

    @property
    def facts(self) -> CutBook:
        """What is known of the graph's rows."""
        return self.ways.book

    def param_places(self, value: int) -> tuple[int, ...]:
        """Of the cuts of a parameter those that an override can say."""
        info = self.graph.params[self.graph.rows[value].origin.name]
        cuts = enumerate(self.ways.cuts(value))
        return tuple(place for place, cut in cuts if is_said(self.members, info, cut))

    def _add(self, row: Row) -> None:
        pure, static = self.facts.facts.kinds.pure, self.facts.facts.kinds.static
        if pure[row.id] or (row.op == GETITEM and not self._is_alone(row.id)):
            return
        operands = [i for i in dict.fromkeys(self.facts.facts.operands[row.id]) if not pure[i]]
        results = self._results(row)
        is_static = static[row.id]
        if row.op == "placeholder":
            if row.origin.kind is not OriginKind.PARAM:
                return
            if self.uses[row.id] > 1:
                self._waiting[row.id] = row
            return
        ways = self.ways.ways(row, operands, results)
        may_move = moves(self, row)
        if is_static and not may_move and self._is_read_once(row) and all(map(self._is_alone, operands)):
            self.alone[row.id] = (row, tuple(operands), ways)
            return
        statics = tuple(i for i in operands if self._is_alone(i))
        actives = tuple(i for i in operands if i not in statics)
        order = tuple((i in statics, (statics if i in statics else actives).index(i)) for i in operands)
        self.steps += [self._start(i, row.layer) for i in actives if i in self._waiting]
        self.steps.append(RowStep(row, actives, statics, order, results, ways, may_move))

    def _start(self, value: int, layer: int | None) -> RowStep:
        """Where a parameter that several rows read starts to live: in the layer of the first."""
        row = replace(self._waiting.pop(value), layer=layer)
        return RowStep(row, (), (value,), ((True, 0),), (value,), (), False, starts=True)

    def _is_read_once(self, row: Row) -> bool:
        return self.uses[row.id] == 1 and row.outs is None

    def _is_alone(self, value: int) -> bool:
        """Whether it is made of parameters for one row."""
        row = self.graph.rows[value]
        return value in self.alone or (
            row.op == "placeholder" and self.facts.facts.kinds.static[value] and self.uses[value] == 1
        )

    def _results(self, row: Row) -> tuple[int, ...]:
        if row.outs is None:
            return (row.id,)
        found = [NOTHING] * len(row.outs)
        for reader in self.readers.get(row.id, ()):
            if self.uses[reader] or reader == self.graph.loss:
                found[int(self.graph.rows[reader].args[1])] = reader  # type: ignore[call-overload]
        return tuple(found)


def _live(graph: LogicalGraph) -> set[int]:
    """Rows that the loss depends on."""
    live: set[int] = set()
    stack = [graph.loss]
    while stack:
        number = stack.pop()
        if number not in live:
            live.add(number)
            stack += row_inputs(graph.rows[number])
    return {number for number in live if graph.rows[number].phase is Phase.FORWARD}


def blocks(steps: Sequence[RowStep]) -> list[tuple[int, int]]:
    """[first, last) of runs of steps of one layer, or of none."""
    found: list[tuple[int, int]] = []
    for place, step in enumerate(steps):
        if found and steps[place - 1].row.layer == step.row.layer:
            found[-1] = (found[-1][0], place + 1)
        else:
            found.append((place, place + 1))
    return found
