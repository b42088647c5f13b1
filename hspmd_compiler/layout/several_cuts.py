"""Layouts that only hand-written annotations ask for, and no operator's rule takes.

Ranks cut several dims; or the addends of a sum over ranks are pieces of several dims, or of samples, or
have copies. A value lies so between a marker and its first use, a parameter between
steps: `collapsed` is what it becomes before an operator sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations

from .intervals import Intervals, covers, intersect
from .layout import Addends, Axis, Factor, Layout, make_layout


@cache
def rank_cuts(layout: Layout) -> tuple[tuple[int, Factor], ...]:
    """Every (dim, factor) that the ranks of the stage cut; of samples, what ranks alone do to them."""
    return tuple(
        (index, cut)
        for index, dim in enumerate(layout.dims)
        for factor in dim
        if (cut := factor.cut_by(ranks=True)) is not None
    )


@cache
def is_plain(layout: Layout) -> bool:
    """Whether operators' rules can take it: ranks cut at most one factor, or have addends of the whole."""
    cuts = len(rank_cuts(layout))
    pending = Axis.TENSOR in layout.partial
    return layout.addends is None and cuts + pending <= 1


def _cuts_samples(layout: Layout) -> bool:
    return any(factor.by_rank is not None for factor in layout.factors())


@cache
def without_ranks(layout: Layout) -> Layout:
    """What is left without the ranks: every rank holds what the batch axis leaves to it, settled."""
    dims = tuple(tuple(map(_without_ranks, dim)) for dim in layout.dims)
    return make_layout(dims, layout.partial - {Axis.TENSOR})


def _without_ranks(factor: Factor) -> Factor:
    if factor.axis is None:
        return factor
    return Factor(factor.size) if factor.axis.on_ranks else Factor(factor.size, factor.axis, factor.sets)


@cache
def collapsed(layout: Layout) -> Layout:
    """The plain layout nearest to it: settled, with the one cut of which ranks hold least; else whole."""
    plain = without_ranks(layout)
    cuts = [(dim, cut) for dim, cut in rank_cuts(layout) if cut.sets and covers(cut.size, cut.sets)]
    if not cuts:
        return plain
    kept, _ = min(cuts, key=lambda found: _share(found[1]))
    own = tuple(factor.copies() for factor in layout.dims[kept])
    return plain.with_dims(own if index == kept else dim for index, dim in enumerate(plain.dims))


def _share(factor: Factor) -> float:
    """How much of a factor the ranks hold, in the mean."""
    sets = factor.sets or ()
    return sum(high - low for held in sets for low, high in held) / (factor.size * len(sets))


def with_cuts(base: Layout, cuts: Mapping[int, Factor], addends: Sequence[int] | None) -> Layout:
    """A layout without ranks, cut by them: these factors in the place of dims.

    addends: which addend of the value each rank has, None where it is settled.
    """
    dims = tuple((cuts[index],) if index in cuts else dim for index, dim in enumerate(base.dims))
    settled = make_layout(dims, base.partial)
    if addends is None:
        return settled
    if _have_copies(cuts, addends):
        return make_layout(dims, base.partial | {Axis.TENSOR}, _numbered(addends))
    found = rank_cuts(settled)
    if len(found) != 1 or _cuts_samples(settled):
        return make_layout(dims, base.partial | {Axis.TENSOR})
    dim, _ = found[0]
    pieces = tuple(_as_addends(factor) for factor in settled.dims[dim])
    return settled.with_dim(dim, pieces)


def _as_addends(factor: Factor) -> Factor:
    on_ranks = factor.axis is not None and factor.axis.on_ranks
    return Factor(factor.size, factor.axis, factor.sets, contrib=True) if on_ranks else factor


def _have_copies(cuts: Mapping[int, Factor], addends: Sequence[int]) -> bool:
    """Whether an element of an addend lies on two ranks."""
    held = [[_of_rank(cut, rank) for cut in cuts.values()] for rank in range(len(addends))]
    return any(
        addends[a] == addends[b] and all(map(intersect, held[a], held[b]))
        for a, b in combinations(range(len(addends)), 2)
    )


def _of_rank(cut: Factor, rank: int) -> Intervals:
    return (cut.of_ranks or ())[rank]


def _numbered(addends: Sequence[int]) -> Addends:
    """Numbers in the order in which they come."""
    order = list(dict.fromkeys(addends))
    return tuple(order.index(addend) for addend in addends)


def addends_of(layout: Layout, ranks: int) -> Addends:
    """Which addend each rank has; the same everywhere where the value is settled."""
    if layout.addends is not None:
        return layout.addends
    pending = Axis.TENSOR in layout.partial or any(cut.contrib for _, cut in rank_cuts(layout))
    return tuple(range(ranks)) if pending else (0,) * ranks
