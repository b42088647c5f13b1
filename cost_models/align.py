"""An estimated timeline beside the measured one: by instruction, by kind and rank, and where they part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..base.timeline import Span, SpanKind, Timeline
from ..base.trace_file import nanoseconds

PARTED = 0.02
"""Of the estimated step: timelines that are no further apart are told to agree."""
LARGEST_TOLD = 5
ORDER = tuple(SpanKind)

InstructionKey: TypeAlias = tuple[int, int, int]
"""rank, position, micro-batch."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """An instruction on one timeline, its waits included; the step begins at 0.

    own_s: seconds of each kind but waiting.
    """

    start_s: float
    end_s: float
    own_s: Mapping[SpanKind, float]
    peers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InstructionPair:
    """An instruction that both timelines have. kind: what it does, apart from exchanges inside it."""

    rank: int
    position: int
    mb: int
    kind: SpanKind
    estimated: Occurrence
    measured: Occurrence

    @property
    def lag_s(self) -> float:
        """Seconds by which it ended later than estimated."""
        return self.measured.end_s - self.estimated.end_s


@dataclass(frozen=True, slots=True)
class OwnDifference:
    """What an instruction spends on one kind, waits apart."""

    pair: InstructionPair
    kind: SpanKind

    @property
    def estimated_s(self) -> float:
        return self.pair.estimated.own_s.get(self.kind, 0.0)

    @property
    def measured_s(self) -> float:
        return self.pair.measured.own_s.get(self.kind, 0.0)

    @property
    def more_s(self) -> float:
        """Seconds by which it took longer than estimated."""
        return self.measured_s - self.estimated_s


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

    largest: those whose own seconds differ most, one of each stage and kind, the largest first.
    only_estimated, only_measured: instructions without a partner.
    """

    estimated_s: float
    measured_s: float
    kinds: tuple[KindSeconds, ...]
    by_rank: tuple[KindSeconds, ...]
    pairs: tuple[InstructionPair, ...]
    first: InstructionPair | None
    largest: tuple[OwnDifference, ...]
    only_estimated: tuple[InstructionKey, ...]
    only_measured: tuple[InstructionKey, ...]


def align(estimated: Timeline, measured: Timeline) -> Alignment:
    """Pair the instructions of two timelines by rank, position and micro-batch."""
    before, after = _occurrences(estimated), _occurrences(measured)
    pairs = tuple(_pair(key, before[key], after[key]) for key in before if key in after)
    ends = _length_s(estimated), _length_s(measured)
    late = [pair for pair in pairs if abs(pair.lag_s) > PARTED * ends[0]]
    return Alignment(
        *ends,
        kinds=tuple(_kinds(estimated, measured, by_rank=False)),
        by_rank=tuple(_kinds(estimated, measured, by_rank=True)),
        pairs=pairs,
        first=min(late, key=lambda pair: (nanoseconds(pair.measured.end_s), pair.rank), default=None),
        largest=tuple(_largest(pairs, estimated.labels)),
        only_estimated=tuple(key for key in before if key not in after),
        only_measured=tuple(key for key in after if key not in before),
    )


def _pair(key: InstructionKey, estimated: Occurrence, measured: Occurrence) -> InstructionPair:
    kinds = {*estimated.own_s, *measured.own_s} or {SpanKind.WAIT}
    return InstructionPair(*key, min(kinds, key=ORDER.index), estimated, measured)


def _largest(pairs: Sequence[InstructionPair], labels: Mapping[int, str]) -> list[OwnDifference]:
    """One of each stage and kind, as its micro-batches and ranks are alike; no noise of floats."""
    all_of_them = [
        OwnDifference(pair, kind)
        for pair in pairs
        for kind in sorted({*pair.estimated.own_s, *pair.measured.own_s}, key=ORDER.index)
    ]
    found: dict[tuple[str, SpanKind], OwnDifference] = {}
    for each in sorted(all_of_them, key=lambda each: -abs(nanoseconds(each.more_s))):
        if nanoseconds(each.more_s):
            where = labels.get(each.pair.rank, "").partition(": ")[2] or str(each.pair.rank)
            found.setdefault((where, each.kind), each)
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
    own: Counter[SpanKind] = Counter()
    for span in spans:
        if span.kind is not SpanKind.WAIT:
            own[span.kind] += span.length_s  # type: ignore[assignment]
    start_s, end_s = min(span.start_s for span in spans), max(span.end_s for span in spans)
    return Occurrence(start_s - zero_s, end_s - zero_s, own, spans[-1].peers)


def _kinds(estimated: Timeline, measured: Timeline, by_rank: bool) -> Iterable[KindSeconds]:
    before, after = (_sums(line.spans, by_rank) for line in (estimated, measured))
    for rank, kind in sorted({*before, *after}, key=lambda key: (key[0], ORDER.index(key[1]))):
        yield KindSeconds(rank, kind, before[rank, kind], after[rank, kind])


def _sums(spans: Iterable[Span], by_rank: bool) -> Counter[tuple[int, SpanKind]]:
    sums: Counter[tuple[int, SpanKind]] = Counter()
    for span in spans:
        sums[span.rank if by_rank else -1, span.kind] += span.length_s  # type: ignore[assignment]
    return sums
