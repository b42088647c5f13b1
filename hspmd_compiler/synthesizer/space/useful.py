"""Which ways of rows lead on: a way whose result nothing can use is left out before the search."""

from __future__ import annotations

from collections.abc import Sequence

from .codes import FIRST_CUT, PENDING, REPLICATE, WHOLE, serves
from .forward_rows import ForwardWalk, RowStep
from .row_ways import NOTHING, RowWay

Codes = frozenset[int]


def useful_ways(walk: ForwardWalk) -> tuple[list[tuple[RowWay, ...]], dict[int, Codes]]:
    """Per step the ways that lead on, and per live value the codes that all its readers can use.

    Walks back from the loss, which may be a pending sum.
    """
    wanted: dict[int, Codes] = {walk.graph.loss: frozenset((REPLICATE, WHOLE, PENDING))}
    known: dict[object, tuple[tuple[RowWay, ...], tuple[Codes, ...]]] = {}
    found: list[tuple[RowWay, ...]] = []
    for step in reversed(walk.steps):
        if step.starts:
            found.append(())
            continue
        targets = tuple(_all(walk, step, i) if step.moves and i == 0 else wanted.get(r) for i, r in
                        enumerate(step.results))  # fmt: skip
        sizes = tuple(FIRST_CUT + len(walk.ways.cuts(value)) for value in step.actives)
        statics = tuple(_static_codes(walk, value) for value in step.statics)
        key = (id(step.ways), step.order, targets, sizes, statics)
        if key not in known:
            known[key] = _kept(step, targets, sizes, statics)
        ways, accepted = known[key]
        found.append(ways)
        for value, codes in zip(step.actives, accepted, strict=True):
            wanted[value] = wanted[value] & codes if value in wanted else codes
    return found[::-1], wanted


def _all(walk: ForwardWalk, step: RowStep, place: int) -> Codes | None:
    """Of a value that moves: any code."""
    value = step.results[place]
    return None if value == NOTHING else frozenset(range(FIRST_CUT + len(walk.ways.cuts(value))))


def _static_codes(walk: ForwardWalk, value: int) -> Codes:
    """The codes that a value of parameters alone can have."""
    if value not in walk.alone:
        return frozenset((REPLICATE, WHOLE, *(FIRST_CUT + place for place in walk.param_places(value))))
    _, operands, ways = walk.alone[value]
    given = [_static_codes(walk, one) for one in operands]
    return frozenset(
        way.gives[0]
        for way in ways
        if way.gives[0] != PENDING
        and all(need in codes for need, codes in zip(way.needs, given, strict=True))
    )


def _kept(
    step: RowStep, targets: Sequence[Codes | None], sizes: Sequence[int], statics: Sequence[Codes]
) -> tuple[tuple[RowWay, ...], tuple[Codes, ...]]:
    ways = []
    needs: list[set[int]] = [set() for _ in step.actives]
    for way in step.ways:
        leads = all(
            codes is None or any(serves(give, code) for code in codes)
            for give, codes in zip(way.gives, targets, strict=True)
        )
        if not leads or any(
            need not in statics[place]
            for need, (static, place) in zip(way.needs, step.order, strict=True)
            if static
        ):
            continue
        ways.append(way)
        for need, (static, place) in zip(way.needs, step.order, strict=True):
            if not static:
                needs[place].add(need)
    accepted = tuple(
        frozenset(
            code for code in range(size) if any(serves(code, need) or _slices(code, need) for need in wanted)
        )
        for size, wanted in zip(sizes, needs, strict=True)
    )
    return tuple(ways), accepted


def _slices(held: int, wanted: int) -> bool:
    """Whether a rank can slice what it uses, where another operand is cut."""
    return held == WHOLE and wanted >= FIRST_CUT
