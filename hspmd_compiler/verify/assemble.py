"""A logical value put together from the local tensors of ranks and micro-batches, by its layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ..base.by_key import by_key
from ..errors import VerifyError
from ..layout.intervals import Intervals
from ..layout.layout import Axis, Coordinate, Factor, Layout

Index = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class LocalPiece:
    """The local tensor of one rank in one micro-batch. at: its place in the stage and in the batch."""

    rank: int
    at: Coordinate
    layout: Layout
    tensor: Tensor


@dataclass(slots=True)
class Assembled:
    """A value as far as pieces cover it. copies: largest difference between copies of one element."""

    value: Tensor
    covered: Tensor
    copies: float = 0.0

    @property
    def missing(self) -> int:
        """Elements that no piece holds."""
        return int((~self.covered).sum())


def assemble(pieces: Sequence[LocalPiece]) -> Assembled:
    """The value of all pieces: joined over the ranks of each micro-batch, then over micro-batches.

    Pieces of one batch coordinate are those of one stage of one pipeline.
    """
    by_batch = by_key((piece.at.batch, piece) for piece in pieces)
    parts = [_over_ranks(by_batch[batch]) for batch in sorted(by_batch)]
    if is_addend(pieces[0].layout, ranks=False):
        return _summed(parts)
    return _filled(parts)


def is_addend(layout: Layout, *, ranks: bool) -> bool:
    """Whether pieces along the ranks (or else along the batch axis) are to be added."""
    cut = layout.cut(ranks)
    pending = any(axis.on_ranks == ranks for axis in layout.partial)
    return pending or (cut is not None and cut[1].contrib)


def gap(found: Tensor, wanted: Tensor) -> Tensor:
    """|found - wanted| of each element; zero where both are the same infinity, or no number."""
    if found.dtype == torch.bool:
        return (found != wanted).double()
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    return torch.where(same, 0.0, (found - wanted).abs().double())


def index_of(layout: Layout, at: Coordinate) -> Index:
    """Where the local tensor lies in the factored view of the whole: one index per factor."""
    return _index([factor.held(at) for factor in layout.factors()])


def whole_view(layout: Layout) -> tuple[int, ...]:
    """The factored view of the whole value."""
    return tuple(factor.size for factor in layout.factors())


def local_view(layout: Layout, at: Coordinate) -> tuple[int, ...]:
    """The factored view of the local tensor."""
    return tuple(factor.length(at) for factor in layout.factors())


def _index(held: Sequence[Intervals]) -> Index:
    """The places in these intervals of each factor, so that all of them together are a block."""
    places = [torch.tensor([i for ends in of for i in range(*ends)], dtype=torch.int64) for of in held]
    return tuple(
        at.reshape([-1 if dim == number else 1 for dim in range(len(held))])
        for number, at in enumerate(places)
    )


def _over_ranks(pieces: Sequence[LocalPiece]) -> Assembled:
    """All pieces of one micro-batch."""
    layout = pieces[0].layout
    if not is_addend(layout, ranks=True):
        return _joined(pieces)
    by_addend = by_key((_addend(layout, piece.at.rank), piece) for piece in pieces)
    total = _summed([_joined(of) for of in by_addend.values()])
    for piece in pieces:
        total.covered.view(whole_view(layout))[_batch_index(layout, piece.at)] = True
    return total


def _addend(layout: Layout, rank: int) -> int:
    """Which addend a rank holds; ranks of equal numbers hold copies of one."""
    return rank if layout.addends is None else layout.addends[rank]


def _joined(pieces: Sequence[LocalPiece]) -> Assembled:
    """Pieces of one value, or of one addend of it."""
    layout = pieces[0].layout
    view = whole_view(layout)
    value = torch.zeros(view, dtype=pieces[0].tensor.dtype)
    covered = torch.zeros(view, dtype=torch.bool)
    largest = 0.0
    for piece in pieces:
        index = index_of(layout, piece.at)
        shape = local_view(layout, piece.at)
        if piece.tensor.numel() != prod(shape):
            raise VerifyError(
                f"a rank holds {piece.tensor.numel()} elements where its layout has {prod(shape)}",
                details=[("rank", str(piece.at.rank))],
                rule="a rank holds of each value what its layout says",
            )
        local = piece.tensor.reshape(shape)
        if local.numel():
            old, known = value[index], covered[index]
            largest = max(largest, largest_of(gap(old, local)[known]))
            value[index] = torch.where(known, old, local)
            covered[index] = True
    return Assembled(value.reshape(layout.shape), covered.reshape(layout.shape), largest)


def _batch_index(layout: Layout, at: Coordinate) -> Index:
    """As `index_of`, all of what ranks cut: what no rank adds to is zero."""
    return _index([_of_batch(factor, at) for factor in layout.factors()])


def _of_batch(factor: Factor, at: Coordinate) -> Intervals:
    if factor.axis is Axis.BATCH and factor.sets is not None:
        return factor.sets[at.batch]
    return ((0, factor.size),)


def _summed(parts: Sequence[Assembled]) -> Assembled:
    value, covered = parts[0].value, parts[0].covered
    for part in parts[1:]:
        value = value + part.value
        covered = covered | part.covered
    return Assembled(value, covered, max(part.copies for part in parts))


def _filled(parts: Sequence[Assembled]) -> Assembled:
    value, covered = parts[0].value.clone(), parts[0].covered.clone()
    largest = max(part.copies for part in parts)
    for part in parts[1:]:
        both = covered & part.covered
        largest = max(largest, largest_of(gap(value, part.value)[both]))
        value = torch.where(covered, value, part.value)
        covered |= part.covered
    return Assembled(value, covered, largest)


def largest_of(gaps: Tensor) -> float:
    """The largest number; zero where there is none."""
    return float(gaps.max()) if gaps.numel() else 0.0
