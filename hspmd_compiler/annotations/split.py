"""How one tensor dim is cut: evenly, by shares, in whole units, or inside each of several blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..base.comm_plan import Interval
from ..layout.intervals import Intervals, union
from ..layout.shares import assign_units
from .problems import AnnotationProblem, refuse

Share = int | Interval


def even_lengths(length: int, parts: int) -> tuple[int, ...]:
    """Lengths that differ by at most one, the longer ones first."""
    small, longer = divmod(length, parts)
    return (small + 1,) * longer + (small,) * (parts - longer)


def dealt(units: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Lengths by weight; weights that add up to the units are the lengths themselves."""
    return tuple(weights) if sum(weights) == units else assign_units(units, weights)


def consecutive(lengths: Sequence[int]) -> Intervals:
    """Intervals of these lengths, one after another from 0."""
    ends = tuple(accumulate(lengths))
    return tuple((end - length, end) for end, length in zip(ends, lengths, strict=True))


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of a dim that is cut on its own; `shares` are as those of a split."""

    length: int
    shares: tuple[Share, ...] | None = None

    def __str__(self) -> str:
        return f"{self.length}{shares_text(self.shares)}"


@dataclass(frozen=True, slots=True)
class Split:
    """A dim cut into `parts`, one for each coordinate.

    shares: one per coordinate: either weights, by which whole units are dealt out, one stretch after
    another, zero allowed; or intervals (low, high) of units, which may overlap (the overlap is held as
    equal copies). None: as even as whole units allow, the first coordinates one unit more. blocks: the dim
    is these stretches side by side, each cut on its own, as for fused q|k|v rows; then shares belong to the
    blocks.
    unit: rows that stay together, as the rows of one attention head.
    """

    dim: int
    parts: int
    shares: tuple[Share, ...] | None = None
    blocks: tuple[Block, ...] = ()
    unit: int = 1

    def __post_init__(self) -> None:
        refuse(self._problems(), f"split {self}")

    @classmethod
    def by_shares(cls, dim: int, shares: Sequence[Share], *, unit: int = 1) -> Split:
        """A split with one coordinate for each share."""
        return cls(dim, len(shares), shares=tuple(shares), unit=unit)

    @classmethod
    def by_blocks(cls, dim: int, parts: int, lengths: Sequence[int], *, unit: int = 1) -> Split:
        """Each block of these lengths cut evenly."""
        return cls(dim, parts, blocks=tuple(map(Block, lengths)), unit=unit)

    @property
    def key(self) -> int:
        """The tensor dim."""
        return self.dim

    @property
    def fits_all(self) -> bool:
        """Whether a dim of any length can be split so."""
        return self.shares is None and not self.blocks and self.unit == 1

    @property
    def known_length(self) -> int | None:
        """The one dim length that this split fits; None if it fits many."""
        if self.blocks:
            return sum(block.length for block in self.blocks)
        spans = _intervals(self.shares or ())
        return self.unit * max(high for _, high in spans) if spans else None

    def pieces(self, length: int) -> tuple[Intervals, ...]:
        """Rows of each coordinate, ascending and merged; `problems_on(length)` must be empty."""
        if self.fits_all:
            spans = consecutive(even_lengths(length, self.parts))
            return tuple([((low, high),) if low < high else () for low, high in spans])
        held: list[list[Interval]] = [[] for _ in range(self.parts)]
        start = 0
        for block in self.blocks or (Block(length, self.shares),):
            for rows, (low, high) in zip(held, self._spans(block), strict=True):
                rows.append((start + low * self.unit, start + high * self.unit))
            start += block.length
        return tuple(map(union, held))

    def problems_on(self, length: int) -> Iterator[AnnotationProblem]:
        """Why a dim of this length can't be split so."""
        if self.fits_all:
            return
        known = self.known_length
        if known is not None and known != length:
            what = "blocks" if self.blocks else "intervals"
            unit = f" x {self.unit}" if self.unit > 1 and not self.blocks else ""
            yield AnnotationProblem(
                f"{self}: {what}{unit} add up to {known}, dim {self.dim} has {length}",
                f"{what} add up to the length that is split",
                f"change them so that they add up to {length}",
            )
        elif length % self.unit:
            yield self._ragged(length)
        elif length and self.shares is not None:
            yield from _no_weight(self.shares)

    def __str__(self) -> str:
        parts = f"x{self.parts}" if self.shares is None else shares_text(self.shares)
        unit = f"/{self.unit}" if self.unit != 1 else ""
        blocks = f"{{{','.join(map(str, self.blocks))}{unit}}}" if self.blocks else unit
        return f"S{self.dim}{parts}{blocks}"

    def _spans(self, block: Block) -> Intervals:
        units = block.length // self.unit
        if block.shares is None:
            return consecutive(even_lengths(units, self.parts))
        return _intervals(block.shares) or consecutive(dealt(units, _weights(block.shares)))

    def _ragged(self, length: int) -> AnnotationProblem:
        return AnnotationProblem(
            f"{self}: {length} rows are not whole units of {self.unit}",
            "a length that is split in units is a multiple of the unit",
            f"use a unit that divides {length}",
        )

    def _problems(self) -> Iterator[AnnotationProblem]:
        if self.dim < 0:
            yield AnnotationProblem(
                f"dim {self.dim} is negative", "dims count from 0", "count from the first dim"
            )
        for name, value in (("parts", self.parts), ("unit", self.unit)):
            if value < 1:
                yield AnnotationProblem(f"{name} is {value}", f"{name} is 1 or more", f"use 1 or more {name}")
        if self.blocks and self.shares is not None:
            yield AnnotationProblem(
                "shares are given for the dim and for blocks of it",
                "with blocks, shares belong to the blocks",
                "move the shares into the blocks, as S0x2{4(3,1),4(1,3)}",
            )
        if self.shares is not None:
            yield from self._share_problems(self.shares)
        if self.unit > 0:
            for index, block in enumerate(self.blocks):
                for problem in self._block_problems(block):
                    yield problem.within(f"block {index}")

    def _block_problems(self, block: Block) -> Iterator[AnnotationProblem]:
        if block.length < 1:
            yield AnnotationProblem(
                f"length {block.length}", "a block has at least one row", "leave the block out"
            )
        elif block.length % self.unit:
            yield self._ragged(block.length)
        elif block.shares is not None:
            yield from self._share_problems(block.shares)
            units, spans = block.length // self.unit, _intervals(block.shares)
            if spans and (total := max(high for _, high in spans)) != units:
                yield AnnotationProblem(
                    f"intervals add up to {total} units, the block has {units}",
                    "intervals add up to the length that is split",
                    f"change them so that they add up to {units}",
                )
            yield from _no_weight(block.shares)

    def _share_problems(self, shares: tuple[Share, ...]) -> Iterator[AnnotationProblem]:
        if len(shares) != self.parts:
            yield AnnotationProblem(
                f"{len(shares)} shares for {self.parts} parts",
                "there is one share for each part",
                f"give {self.parts} shares",
            )
        weights, spans = _weights(shares), _intervals(shares)
        if weights and spans:
            yield AnnotationProblem(
                "shares mix weights and intervals",
                "shares of one split are all weights, or all intervals",
                "write every share as low:high",
            )
        for share in weights:
            if share < 0:
                yield AnnotationProblem(
                    f"share {share} is negative", "a share is 0 or more", "use 0 for nothing"
                )
        yield from _span_problems(spans)


def _span_problems(spans: Sequence[Interval]) -> Iterator[AnnotationProblem]:
    for low, high in spans:
        if not 0 <= low <= high:
            yield AnnotationProblem(
                f"share {low}:{high} is no interval",
                "an interval low:high has 0 <= low <= high",
                f"write {min(low, high)}:{max(low, high)}",
            )
    covered = union(spans)
    if covered and (len(covered) > 1 or covered[0][0] != 0):
        gaps = [(low, high) for low, high in _gaps(covered)]
        yield AnnotationProblem(
            "no share holds " + ", ".join(f"{low}:{high}" for low, high in gaps),
            "every element has a holder",
            "widen the intervals until they meet",
        )


def _gaps(covered: Intervals) -> Iterator[Interval]:
    end = 0
    for low, high in covered:
        if end < low:
            yield end, low
        end = high


def _intervals(shares: Sequence[Share]) -> Intervals:
    return tuple(share for share in shares if not isinstance(share, int))


def _weights(shares: Sequence[Share]) -> tuple[int, ...]:
    return tuple(share for share in shares if isinstance(share, int))


def _no_weight(shares: Sequence[Share]) -> Iterator[AnnotationProblem]:
    if not any(_weights(shares)) and not _intervals(shares):
        yield AnnotationProblem(
            "all shares are 0", "every element has a holder", "give at least one coordinate a share above 0"
        )


def shares_text(shares: tuple[Share, ...] | None) -> str:
    """`(3,1,1)` or `(0:2,1:2)`; nothing for an even split."""
    if shares is None:
        return ""
    return f"({','.join(str(s) if isinstance(s, int) else f'{s[0]}:{s[1]}' for s in shares)})"
