"""Numbers of a program that depend on the micro-batch: a factor times tokens or samples, plus a constant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

RING = -1
"""`Size.parts` of the cut among the members of a context-parallel group."""


class Count(Enum):
    """What a size counts."""

    ONE = "one"  # nothing: times 1
    SAMPLES = "samples"  # n, of the micro-batch
    TOKENS = "tokens"  # T, of each sample of the micro-batch, or a run of pieces of a cut of them
    ALL = "all"  # N, samples of the whole step


@dataclass(frozen=True, slots=True)
class MicroSizes:
    """The sizes of one micro-batch.

    cuts: tokens per rank of a stage, for each degree that is not cut evenly. ring: tokens of each member of a
    context-parallel group, `tokens` being this member's own. first: number of its first token in the step
    (of its first sample, where samples vary). documents: tokens of each packed document, in order; none: one
    document per sample.
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


@dataclass(frozen=True, slots=True)
class Size:
    """factor * of * (samples, where `by_samples`) + plus, less `minus`.

    of TOKENS with `parts`: pieces [low, high) of that cut, added up; parts 0: all tokens. minus: for boxes
    between unlike cuts, a difference of two sums of pieces.
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
        """The number, for a micro-batch; total: samples of the whole step."""
        counted = self._counted(sizes, total) * (sizes.samples if self.by_samples else 1)
        return self.factor * counted + self.plus - (0 if self.minus is None else self.minus.at(sizes, total))

    def _counted(self, sizes: MicroSizes, total: int) -> int:
        if self.of is Count.TOKENS and self.parts:
            return sum(sizes.pieces(self.parts)[self.low : self.high])
        return {
            Count.ONE: 1,
            Count.SAMPLES: sizes.samples,
            Count.TOKENS: sizes.tokens,
            Count.ALL: total,
        }[self.of]


def even_cut(count: int, parts: int) -> tuple[int, ...]:
    """`count` in `parts` pieces, the first taking what remains."""
    each, more = divmod(count, parts)
    return tuple(each + (part < more) for part in range(parts))


def first_of(pieces: Sequence[int], part: int) -> int:
    """Where a piece begins."""
    return sum(pieces[:part])
