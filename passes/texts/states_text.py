"""How a stage's ranks hold a value, as the states of an annotation: `S1x2`, `Px2`, `S0x2 S1(3,2)`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from math import prod

from ...annotations.recut import split_from_pieces
from ...annotations.states import DistributedStates, Duplicate, Partial, Placement
from ...layout.intervals import Intervals, within
from ...layout.layout import Axis, Coordinate, Factor, Layout
from ...layout.layout_rows import held_rows
from ...layout.several_cuts import addends_of, is_plain, without_ranks

Dealt = tuple[Placement, Sequence[int]]
"""A placement, and the coordinate of each rank in it."""


def states_text(layout: Layout, ranks: int) -> str:
    """The states of one subgroup, such as `S1x2`, `S0(3,1,1)`, `Px2`, `Dx2`, or `R` on one device."""
    if not is_plain(layout):
        found = _several(layout, ranks)
        if found is not None:
            return str(found)
    parts = [
        _factor_text(dim, factor, ranks) for dim, factors in enumerate(layout.dims) for factor in factors
    ]
    shown = [part for part in parts if part]
    if Axis.TENSOR in layout.partial:
        shown.insert(0, f"Px{len(set(addends_of(layout, ranks)))}")
    if not shown:
        return "R" if ranks == 1 else f"Dx{ranks}"
    return " ".join(shown)


def _factor_text(dim: int, factor: Factor, ranks: int) -> str:
    if factor.axis is None or not (factor.axis.on_ranks or factor.by_rank):
        return ""
    lengths = [factor.length(Coordinate(rank, _longest(factor))) for rank in range(ranks)]
    sign = "+" if factor.contrib else ""
    base, more = divmod(sum(lengths), ranks)
    if lengths == [base + (rank < more) for rank in range(ranks)] and sum(lengths) == _whole(factor):
        return f"S{dim}x{ranks}{sign}"
    return f"S{dim}({','.join(map(str, lengths))}){sign}"


def _longest(factor: Factor) -> int:
    """The coordinate of the longest micro-batch, for a factor that the batch axis cuts; else any."""
    if factor.axis is not Axis.BATCH or factor.sets is None:
        return 0
    lengths = [sum(high - low for low, high in held) for held in factor.sets]
    return lengths.index(max(lengths))


def _whole(factor: Factor) -> int:
    """What ranks divide: all of a factor, or its longest micro-batch."""
    if factor.axis is not Axis.BATCH or factor.sets is None:
        return factor.size
    return sum(high - low for low, high in factor.sets[_longest(factor)])


def _several(layout: Layout, ranks: int) -> DistributedStates | None:
    """The placements, in an order in which they give every rank its part; None where no order does."""
    dealt = list(_splits(layout, ranks))
    if layout.addends is not None:
        dealt.append((Partial(max(layout.addends) + 1), layout.addends))
    count, left = divmod(ranks, prod(placement.parts for placement, _ in dealt))
    if left:
        return None
    own_addends = layout.addends is None and Axis.TENSOR in layout.partial
    rest: Placement = Partial(count) if own_addends else Duplicate(count)
    placements = [placement for placement, _ in dealt] + [rest] * (count > 1)
    for order in permutations(placements):
        states = DistributedStates(order)
        found = [states.coordinates(rank) for rank in range(ranks)]
        if all(found[r][placement.key] == at[r] for placement, at in dealt for r in range(ranks)):
            return states
    return None


def _splits(layout: Layout, ranks: int) -> Iterator[Dealt]:
    for dim in range(len(layout.dims)):
        held, length = _pieces(layout, dim, ranks)
        pieces = list(dict.fromkeys(held))
        if len(pieces) > 1:
            yield split_from_pieces(dim, pieces, length), [pieces.index(piece) for piece in held]


def _pieces(layout: Layout, dim: int, ranks: int) -> tuple[list[Intervals], int]:
    """What each rank holds of a dim, and its length; of the samples, in the longest micro-batch."""
    batch = max(map(_longest, layout.dims[dim]), default=0)
    places = [Coordinate(rank, batch) for rank in range(ranks)]
    (of_batch,) = held_rows(Layout((without_ranks(layout).dims[dim],)), places[0])
    held = [within(of_batch, held_rows(layout, at)[dim]) for at in places]
    return held, sum(high - low for low, high in of_batch)
