"""Numbers of a program that depend on the micro-batch: a factor times tokens or samples, plus a constant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TypeAlias

from ...base.typed import read

RING = -1
"""`Size.parts` of the cut among the members of a context-parallel group."""


class Count(Enum):
    """What a size counts."""

    ONE = "one"  # nothing: times 1
    SAMPLES = "samples"  # n, of the micro-batch
    TOKENS = "tokens"  # T, of each sample of the micro-batch, or a run of pieces of a cut of them
    ALL = "all"  # N, of the whole step: its tokens where these vary, else its samples


@dataclass(frozen=True, slots=True)
class MicroSizes:
    """The sizes of one micro-batch.

    cuts: tokens per rank of a stage, for each degree that is not cut evenly. ring: tokens of the pieces in
    which pipelines of a context-parallel group share the row, in its order: one of each member, or two where
    they are balanced (see `member_runs`); `tokens` are this member's own. first: number of the row's first
    token in the step (of the first sample, where samples vary), the same for all who share it. documents:
    tokens of each packed document of the row, in order; none: it is one document.
    """

    samples: int = 1
    tokens: int = 0
    cuts: tuple[tuple[int, ...], ...] = ()
    ring: tuple[int, ...] = ()
    first: int = 0
    documents: tuple[int, ...] = ()

    def pieces(self, parts: int) -> tuple[int, ...]:
        """Tokens of each piece of the cut into `parts`; RING: of each member."""
        if parts == RING:
            return self.ring
        for cut in self.cuts:
            if len(cut) == parts:
                return cut
        return even_cut(self.tokens, parts)

    @property
    def shape(self) -> MicroSizes:
        """The same without what no size depends on: micro-batches of equal shapes run the same numbers."""
        return MicroSizes(self.samples, self.tokens, self.cuts, self.ring)


@dataclass(frozen=True, slots=True)
class Size:
    """factor * of * (samples, where `by_samples`) + plus, less `minus`.

    of TOKENS with `parts`: pieces [low, high) of that cut, added up; parts 0: all tokens. minus: for boxes
    between unlike cuts, a difference of two sums of pieces; for both pieces of a member, those between them.
    """

    factor: int
    of: Count
    parts: int = 0
    low: int = 0
    high: int = 0
    plus: int = 0
    by_samples: bool = False
    minus: Size | None = None

    def at(self, sizes: MicroSizes, total: int = 0) -> int:
        """The number, for a micro-batch; total: what `Count.ALL` counts."""
        counted = self._counted(sizes, total) * (sizes.samples if self.by_samples else 1)
        return self.factor * counted + self.plus - (0 if self.minus is None else self.minus.at(sizes, total))

    def _counted(self, sizes: MicroSizes, total: int) -> int:
        if self.of is Count.TOKENS:
            return sum(sizes.pieces(self.parts)[self.low : self.high]) if self.parts else sizes.tokens
        if self.of is Count.SAMPLES:
            return sizes.samples
        return total if self.of is Count.ALL else 1

    @property
    def text(self) -> str:
        """For people: `3*T`, `T[0:2 of 4]+1`, `n*T`."""
        counted = {Count.ONE: "1", Count.SAMPLES: "n", Count.TOKENS: "T", Count.ALL: "N"}[self.of]
        if self.parts:
            cut = "ring" if self.parts == RING else str(self.parts)
            counted += f"[{self.low}:{self.high} of {cut}]"
        factor = "" if self.factor == 1 else f"{self.factor}*"
        plus = f"{self.plus:+d}" if self.plus else ""
        minus = "" if self.minus is None else f"-{self.minus.text}"
        return f"{factor}{'n*' if self.by_samples else ''}{counted}{plus}{minus}"


Overlay: TypeAlias = tuple[tuple[int, Size], ...]
"""(place, size): which numbers of a CommStep vary, by ascending places in `comm_numbers.numbers_of`."""


def size_from(held: object) -> Size:
    """A size from its JSON form; a ValueError tells what is wrong."""
    found = read(Size, held)
    for each in (found, *([] if found.minus is None else [found.minus])):
        if each.parts < RING or not 0 <= each.low <= each.high or (each.parts > 0 and each.high > each.parts):
            raise ValueError("a size of pieces [low, high) of a cut")
        if each.parts and each.of is not Count.TOKENS:
            raise ValueError("a size whose pieces are of tokens")
    if found.minus is not None and found.minus.minus is not None:
        raise ValueError("a size less one other")
    return found


def even_cut(count: int, parts: int) -> tuple[int, ...]:
    """`count` in `parts` pieces; piece k ends at count * (k + 1) / parts, rounded up.

    So boundaries of cuts in unlike numbers of pieces lie in one order, whatever the count.
    """
    ends = [-(-count * part // parts) for part in range(parts + 1)]
    return tuple(high - low for low, high in pairwise(ends))


def first_of(pieces: Sequence[int], part: int) -> int:
    """Where a piece begins."""
    return sum(pieces[:part])
