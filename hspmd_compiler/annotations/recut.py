"""From the rows that each coordinate holds back to the simplest split that says so."""

from __future__ import annotations

from collections.abc import Sequence

from ..base.comm_plan import Interval
from ..layout.intervals import Intervals, shifted
from .split import Block, Split, consecutive, even_lengths


def split_from_pieces(dim: int, pieces: Sequence[Intervals], length: int) -> Split:
    """The simplest split of a dim of `length` rows with exactly these pieces, unit 1.

    The dim is cut into as few blocks as have one interval per coordinate; shares that are even are left out.
    """
    blocks: list[Block] = []
    start = 0
    while start < length:
        end = _block_end(pieces, start, length)
        blocks.append(_block(pieces, start, end))
        start = end
    if len(blocks) > 1:
        return Split(dim, len(pieces), blocks=tuple(blocks))
    return Split(dim, len(pieces), shares=blocks[0].shares if blocks else None)


def _block_end(pieces: Sequence[Intervals], start: int, length: int) -> int:
    later = ([low for low, high in rows if high > start] for rows in pieces)
    return min([length, *(lows[1] for lows in later if len(lows) > 1)])


def _block(pieces: Sequence[Intervals], start: int, end: int) -> Block:
    spans = [_clip(rows, start, end) for rows in pieces]
    lengths = tuple(high - low for low, high in spans)
    if tuple(spans) != consecutive(lengths) and not _in_order(spans, lengths):
        return Block(end - start, tuple(spans))
    return Block(end - start, None if lengths == even_lengths(end - start, len(pieces)) else lengths)


def _in_order(spans: Sequence[Interval], lengths: tuple[int, ...]) -> bool:
    placed = consecutive(lengths)
    return all(a == b for a, b in zip(spans, placed, strict=True) if a[0] < a[1])


def _clip(rows: Intervals, start: int, end: int) -> Interval:
    inside = [(max(low, start), min(high, end)) for low, high in rows if low < end and high > start]
    return shifted(inside, -start)[0] if inside else (0, 0)
