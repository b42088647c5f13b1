"""How inputs lie in a found program: cut where all that reads them uses pieces of one cut, else whole.

A search asks nothing of values without a gradient, since each rank slices what it uses. A strategy has to say
it, for a whole input and a whole weight are multiplied as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...ir.graph import OriginKind
from ...layout.shares import assign_units
from ..machine import SearchMachine
from ..priced_steps import StepChoice
from ..space.codes import FIRST_CUT
from ..space.row_ways import NOTHING, RowWay
from ..space.search_space import SearchSpace
from ..value_types import FoundInput, Holding, ValueType

UsedCut = tuple[int, int] | None
"""(key of an atom, ratio vector) that a reader uses pieces of; None: all of it."""


def input_cuts(
    space: SearchSpace, machine: SearchMachine, choices: Sequence[tuple[int, StepChoice, bool]]
) -> tuple[FoundInput, ...]:
    """Of each input that is cut. choices: of the steps, in row order."""
    uses: dict[int, set[UsedCut]] = {}
    for place, chosen, _ in choices:
        for value, use in _uses(space, place, chosen):
            uses.setdefault(value, set()).add(use)
    return tuple(
        _input(space, machine, value, *use)
        for value, (use, *others) in sorted(uses.items())
        if use is not None and not others
    )


def _uses(space: SearchSpace, place: int, chosen: StepChoice) -> Iterator[tuple[int, UsedCut]]:
    """The inputs behind a step's operands without a gradient, with what it uses of them."""
    facts, row = space.walk.facts.facts, space.steps[place].row
    free = [value for value in dict.fromkeys(facts.operands[row.id]) if facts.kinds.pure[value]]
    if chosen.way is None or not free:
        return
    key = _key(space, place, chosen.way)
    for value in free:
        has = any(cut.key == key for cut in space.walk.ways.cuts(value))
        for source in _sources(space, value):
            there = has and any(cut.key == key for cut in space.walk.ways.cuts(source))
            yield source, ((key, chosen.vertex) if there and key is not None else None)


def _key(space: SearchSpace, place: int, way: RowWay) -> int | None:
    """The atom that a way cuts."""
    step, ways = space.steps[place], space.walk.ways
    facts = space.walk.facts.facts
    operands = [v for v in dict.fromkeys(facts.operands[step.row.id]) if not facts.kinds.pure[v]]
    for values, codes in ((step.results, way.gives), (operands, way.needs)):
        for value, code in zip(values, codes, strict=False):
            if value != NOTHING and code >= FIRST_CUT:
                return ways.cuts(value)[code - FIRST_CUT].key
    return None


def _sources(space: SearchSpace, value: int) -> Iterator[int]:
    """The inputs that a value is made of."""
    facts, rows = space.walk.facts.facts, space.graph.rows
    seen, stack = {value}, [value]
    while stack:
        one = stack.pop()
        if rows[one].op == "placeholder" and rows[one].origin.kind is OriginKind.INPUT:
            yield one
        for operand in facts.operands[one]:
            if operand not in seen:
                seen.add(operand)
                stack.append(operand)


def _input(space: SearchSpace, machine: SearchMachine, value: int, key: int, vertex: int) -> FoundInput:
    (cut, *_) = (cut for cut in space.walk.ways.cuts(value) if cut.key == key)
    units = None if cut.elements else cut.units
    held = ValueType(Holding.SPLIT, cut.dim, units, vertex, cut.repeats)
    shares = assign_units(cut.units, machine.vertices[vertex])
    return FoundInput(space.graph.rows[value].origin.name, held, shares)
