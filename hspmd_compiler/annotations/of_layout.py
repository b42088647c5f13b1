"""From how ranks hold a value back to the states of an annotation: `S1x2`, `Px2`, `S0x2 S1(3,2)`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from ..layout.intervals import Intervals, covers, within
from ..layout.layout import Axis, Coordinate, Dim, Layout
from ..layout.layout_rows import held_rows
from ..layout.several_cuts import addends_of, without_ranks
from .recut import split_from_pieces
from .states import DistributedStates, Duplicate, Partial, Placement


@dataclass(frozen=True, slots=True)
class _Cut:
    """What ranks have of a dim of some length: `held[r]`, which r // inner % (outer // inner) decides."""

    dim: int
    length: int
    held: tuple[Intervals, ...]
    inner: int
    outer: int

    def placement(self) -> Placement:
        """The split, one part for each step of `inner` ranks."""
        return split_from_pieces(self.dim, self.held[: self.outer : self.inner], self.length)


@dataclass(frozen=True, slots=True)
class _Addends:
    """Which addends ranks have, as a cut has pieces."""

    inner: int
    outer: int

    def placement(self) -> Placement:
        """The addends."""
        return Partial(self.outer // self.inner)


def layout_states(layout: Layout, ranks: int) -> DistributedStates:
    """The states of one subgroup; of samples, those of the longest micro-batch.

    Pieces of addends that no states say, such as those that overlap, are shown as addends alone.
    """
    addends = addends_of(layout, ranks)
    count = len(set(addends))
    digits: list[_Cut | _Addends] = list(_cuts(layout, ranks))
    own = count > 1 and layout.addends is None
    if count > 1 and not own:
        digits.append(_Addends(*_span(addends)))
    digits.sort(key=lambda digit: -digit.inner)
    ends = [ranks, *(digit.inner for digit in digits)]
    gaps = [end // start for end, start in zip(ends, [*(digit.outer for digit in digits), 1], strict=True)]
    fillers = sum(gap > 1 for gap in gaps)
    if own and (fillers != 1 or not all(isinstance(d, _Cut) and covers(d.length, d.held) for d in digits)):
        return DistributedStates((Partial(count),))
    if fillers > 1:  # a key has one placement: copies are pieces that parts share
        digits, gaps = _without_gaps(digits, ranks), []
    rest = Partial if own else Duplicate
    placements = [
        placement
        for gap, digit in zip_longest(gaps, digits)
        for placement in ([rest(gap)] * ((gap or 1) > 1) + ([digit.placement()] if digit else []))
    ]
    return DistributedStates(tuple(placements))


def _without_gaps(digits: Sequence[_Cut | _Addends], ranks: int) -> list[_Cut | _Addends]:
    """Each digit reaches to the next; the first one to all ranks."""
    ends = [*(digit.outer for digit in digits[1:]), 1]
    found = [replace(digit, inner=end) for digit, end in zip(digits, ends, strict=True)]
    return [replace(found[0], outer=ranks), *found[1:]]


def _span(held: Sequence[object]) -> tuple[int, int]:
    """The longest runs of ranks that have the same, and after how many ranks it repeats."""
    count = len(held)
    steps = [step for step in range(1, count + 1) if count % step == 0]
    outer = next(step for step in steps if all(held[at] == held[at % step] for at in range(count)))
    inner = next(
        step
        for step in reversed(steps)
        if outer % step == 0 and all(held[at] == held[at // step * step] for at in range(outer))
    )
    return inner, outer


def _cuts(layout: Layout, ranks: int) -> Iterator[_Cut]:
    """The dims of which ranks hold different rows."""
    for dim, factors in enumerate(layout.dims):
        at = [Coordinate(rank, _longest(factors)) for rank in range(ranks)]
        (whole,) = held_rows(Layout((without_ranks(layout).dims[dim],)), at[0])
        held = tuple(within(whole, held_rows(layout, place)[dim]) for place in at)
        if len(set(held)) > 1:
            yield _Cut(dim, sum(high - low for low, high in whole), held, *_span(held))


def _longest(factors: Dim) -> int:
    """The coordinate of the longest micro-batch, where the batch axis cuts a dim; else any."""
    for factor in factors:
        if factor.axis is Axis.BATCH and factor.sets is not None:
            lengths = [sum(high - low for low, high in held) for held in factor.sets]
            return lengths.index(max(lengths))
    return 0
