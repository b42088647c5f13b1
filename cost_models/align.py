"""An estimated timeline beside the measured one: by instruction, by kind and rank, and where they part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..base.timeline import Span, SpanKind, Timeline
from ..base.trace_file import nanoseconds
from .waits import with_waits

PARTED = 0.02
"""Of the estimated step: timelines that are no further apart are told to agree."""
LARGEST_TOLD = 5

InstructionKey: TypeAlias = tuple[int, int, int]
"""rank, position, micro-batch."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """An instruction on one timeline. own_s: without what it waits. start_s, end_s: from the step's begin."""

    kind: SpanKind
    label: str
    start_s: float
    end_s: float
    own_s: float
    peers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InstructionPair:
    """An instruction that both timelines have."""

    rank: int
    position: int
    mb: int
    estimated: Occurrence
    measured: Occurrence

    @property
    def more_s(self) -> float:
        """Seconds by which it took longer than estimated, waits apart."""
        return self.measured.own_s - self.estimated.own_s

    @property
    def lag_s(self) -> float:
        """Seconds by which it ended later than estimated."""
        return self.measured.end_s - self.estimated.end_s


@dataclass(frozen=True, slots=True)
class KindSeconds:
    """What a rank spent on a kind, -1 for all ranks together. Waits are a kind of their own."""

    rank: int
    kind: SpanKind
    estimated_s: float
    measured_s: float

    @property
    def more_s(self) -> float:
        return self.measured_s - self.estimated_s

    @property
    def ratio(self) -> float | None:
        """measured / estimated, None where nothing was estimated."""
        return self.measured_s / self.estimated_s if self.estimated_s > 0 else None


@dataclass(frozen=True, slots=True)
class Alignment:
    """first: the first to end that ends more than PARTED of the step apart from its estimate.

    largest: those whose own seconds differ most, one of each rank and kind, the largest first.
    only_estimated, only_measured: instructions without a partner.
    """

    estimated_s: float
    measured_s: float
    kinds: tuple[KindSeconds, ...]
    by_rank: tuple[KindSeconds, ...]
    pairs: tuple[InstructionPair, ...]
    first: InstructionPair | None
    largest: tuple[InstructionPair, ...]
    only_estimated: tuple[InstructionKey, ...]
    only_measured: tuple[InstructionKey, ...]


def align(estimated: Timeline, measured: Timeline) -> Alignment:
    """Pair the instructions of two timelines by rank, position and micro-batch."""
    lines = with_waits(estimated), with_waits(measured)
    before, after = (_occurrences(line) for line in lines)
    pairs = tuple(InstructionPair(*key, before[key], after[key]) for key in before if key in after)
    ends = _length_s(estimated), _length_s(measured)
    late = [pair for pair in pairs if abs(pair.lag_s) > PARTED * ends[0]]
    return Alignment(
        *ends,
        kinds=tuple(_kinds(*lines, by_rank=False)),
        by_rank=tuple(_kinds(*lines, by_rank=True)),
        pairs=pairs,
        first=min(late, key=lambda pair: (nanoseconds(pair.measured.end_s), pair.rank), default=None),
        largest=tuple(_largest(pairs)),
        only_estimated=tuple(key for key in before if key not in after),
        only_measured=tuple(key for key in after if key not in before),
    )


def _largest(pairs: Sequence[InstructionPair]) -> list[InstructionPair]:
    """One of each rank and kind, as micro-batches are alike; less than a nanosecond is noise of floats."""
    found: dict[tuple[int, SpanKind], InstructionPair] = {}
    for pair in sorted(pairs, key=lambda pair: -abs(nanoseconds(pair.more_s))):
        if nanoseconds(pair.more_s):
            found.setdefault((pair.rank, pair.estimated.kind), pair)
    return list(found.values())[:LARGEST_TOLD]


def begin_s(timeline: Timeline) -> float:
    """When the step begins."""
    return min((span.start_s for span in timeline.spans), default=0.0)


def _length_s(timeline: Timeline) -> float:
    return timeline.end_s - begin_s(timeline)


def _occurrences(timeline: Timeline) -> Mapping[InstructionKey, Occurrence]:
    """By rank, position and micro-batch, in the order of their spans; what is no instruction is left out."""
    spans: dict[InstructionKey, list[Span]] = {}
    for span in timeline.spans:
        if span.position >= 0:
            spans.setdefault((span.rank, span.position, span.mb), []).append(span)
    zero_s = begin_s(timeline)
    return {key: _occurrence(some, zero_s) for key, some in spans.items()}


def _occurrence(spans: Sequence[Span], zero_s: float) -> Occurrence:
    own = [span for span in spans if span.kind is not SpanKind.WAIT]
    named = (own or spans)[0]
    return Occurrence(
        named.kind,
        named.label,
        min(span.start_s for span in spans) - zero_s,
        max(span.end_s for span in spans) - zero_s,
        sum(span.length_s for span in own),
        named.peers,
    )


def _kinds(estimated: Timeline, measured: Timeline, by_rank: bool) -> Iterable[KindSeconds]:
    before, after = (_sums(line.spans, by_rank) for line in (estimated, measured))
    order = list(SpanKind)
    for rank, kind in sorted({*before, *after}, key=lambda key: (key[0], order.index(key[1]))):
        yield KindSeconds(rank, kind, before[rank, kind], after[rank, kind])


def _sums(spans: Iterable[Span], by_rank: bool) -> Counter[tuple[int, SpanKind]]:
    sums: Counter[tuple[int, SpanKind]] = Counter()
    for span in spans:
        sums[span.rank if by_rank else -1, span.kind] += span.length_s  # type: ignore[assignment]
    return sums
