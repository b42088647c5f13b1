"""The ways in which one call may be split over the ranks of a stage, read from its rule's value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from ..annotations.split import consecutive
from ..layout.intervals import Sets
from ..layout.layout import Axis, Coordinate, Dim, Factor, Layout, dim_cut, make_layout
from ..layout.shares import assign_units
from ..layout.view_maps import at_places
from .call_layouts import Layouts, batch_letters, placed, result_layouts, side_by_side
from .call_rule import Alternative, CallRule
from .op_rule import Linear
from .rules import uncut

WHOLE = ""
PENDING = "+"
TENSOR = frozenset({Axis.TENSOR})


def pieces(call: CallRule, name: str, shares: Sequence[int], known: dict[str, Sets]) -> Factor:
    """How a letter is cut: as its neighbours are, else by shares; letters side by side each by itself."""
    if name in known or "|" not in name:
        size = call.sizes[name]
        return Factor(size, Axis.TENSOR, known.get(name) or even(size, shares))
    read = any((name,) in dims for dims in call.operands)
    parts = [
        (low, Factor(high - low, Axis.TENSOR, known.get(part) or even(high - low, shares)))
        for part, (low, high) in call.spans(name)
        if read or not part.isdigit()  # of a result these are zeros
    ]
    return at_places(parts, call.sizes[name])


def even(size: int, shares: Sequence[int]) -> Sets:
    """Consecutive pieces of a dim, as long as the shares say."""
    spans = consecutive(assign_units(size, shares))
    return tuple(((low, high),) if low < high else () for low, high in spans)


def alternatives(
    call: CallRule,
    layouts: Sequence[Layout],
    shares: tuple[int, ...],
    proposed: tuple[tuple[str, Sets], ...] = (),
) -> tuple[Alternative, ...]:
    """All ways, whole on every rank first; a price adds the conversions of operands to a way's layouts.

    layouts: of the operands as they come; only their cut over the batch counts here. shares: of the ranks.
    proposed: the cuts of letters that neighbours have (heads, blocks of a view), instead of pieces by shares.
    """
    key = ("ways", shares, proposed, *layouts)
    found = call.known.get(key)
    if found is None:
        plain = tuple([_batch_only(layout) for layout in layouts[: len(call.operands)]])
        again = ("plain ways", shares, proposed, *plain)
        if again not in call.known:
            call.known[again] = tuple(_ways(call, plain, shares, dict(proposed)))
        found = call.known[key] = call.known[again]
    return found  # type: ignore[no-any-return]


def _batch_only(layout: Layout) -> Layout:
    bare = uncut(layout, ranks=True)
    return make_layout(bare.dims, bare.partial - TENSOR)


def _ways(
    call: CallRule, layouts: Layouts, shares: tuple[int, ...], known: dict[str, Sets]
) -> Iterator[Alternative]:
    letters = side_by_side(call, batch_letters(call, layouts))
    if letters is None or any(
        dim_cut(letters[name], ranks=False) is not None
        for name in (call.whole | call.pattern) & letters.keys()
    ):
        return  # only code knows whether samples may meet there
    nothing = frozenset[int]()
    yield _way(call, WHOLE, letters, layouts, shares, nothing)
    for name, size in call.sizes.items():
        if (
            name in call.whole
            or name in call.inside
            or size < 2
            or dim_cut(letters[name], ranks=False) is not None
        ):
            continue
        cut = side_by_side(call, letters | {name: (pieces(call, name, shares, known),)})
        if cut is not None:
            yield _way(call, name, cut, layouts, shares, nothing)
    for pending in _pending(call, len(layouts)):
        name = PENDING + ",".join(map(str, sorted(pending)))
        yield _way(call, name, letters, layouts, shares, pending)


def _pending(call: CallRule, count: int) -> Iterator[frozenset[int]]:
    """Operands that may be pending sums together."""
    linear, may = call.rule.linear, call.rule.carries
    if not call.floats or linear not in (Linear.ONE, Linear.EACH, Linear.TOGETHER):
        return
    places = [i for i in range(count) if i != call.rule.added and (may is None or i in may)]
    if linear is Linear.TOGETHER:
        yield frozenset(places)
    else:
        yield from (frozenset({place}) for place in places)


def _way(
    call: CallRule,
    letter: str,
    letters: dict[str, Dim],
    layouts: Layouts,
    shares: tuple[int, ...],
    pending: frozenset[int],
) -> Alternative:
    sums = frozenset[Axis]().union(*(layout.partial for layout in layouts))
    operands = tuple(
        placed(
            call, dims, letters, layout.shape, layout.partial | (TENSOR if place in pending else frozenset())
        )
        for place, (dims, layout) in enumerate(zip(call.operands, layouts, strict=True))
    )
    results = result_layouts(call, letters, sums | (TENSOR if pending else frozenset()))
    ranks = [Coordinate(rank, 0) for rank in range(len(shares))]
    factor = dim_cut(letters[letter], ranks=True) if letter in letters else None
    held = [1.0 if factor is None else factor.length(at) / factor.size for at in ranks]
    moved = [sum(_elements(layout, at) for layout in (*operands, *results)) for at in ranks]
    inside = (
        2 * min(_elements(r, ranks[0]) for r in results if r is not None) if letter in call.pattern else 0
    )
    return Alternative(letter, operands, results, tuple(map(call.flops, held)), tuple(moved), inside)


def _elements(layout: Layout | None, at: Coordinate) -> int:
    return 0 if layout is None else prod(layout.local_shape(at))
