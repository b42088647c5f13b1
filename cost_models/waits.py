"""Waiting told apart from exchanging, in a timeline whose exchanges hold both, as a run measures them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..base.timeline import Span, SpanKind, Timeline

COLLECTIVES = frozenset((SpanKind.COLLECTIVE, SpanKind.GRADIENT, SpanKind.GATHER, SpanKind.LOSS))


def with_waits(timeline: Timeline) -> Timeline:
    """The same with what an exchange spends until its last member is there as a wait of its own.

    A message's ends are found by their order for each (sender, receiver, micro-batch), a collective's
    members by that for each (kind, group). What has no counterpart, and a timeline that tells waits by
    itself, stay as they are.
    """
    if any(span.kind is SpanKind.WAIT for span in timeline.spans):
        return timeline
    begins = _begins(timeline.spans)
    parts = (part for index, span in enumerate(timeline.spans) for part in _split(span, begins.get(index)))
    return replace(timeline, spans=tuple(parts))


def _split(span: Span, begin_s: float | None) -> Iterator[Span]:
    """A wait until `begin_s`, and the rest."""
    if begin_s is None or begin_s <= span.start_s:
        yield span
        return
    middle_s = min(begin_s, span.end_s)
    yield replace(span, end_s=middle_s, kind=SpanKind.WAIT, label=span.label or span.kind.value, size_bytes=0)
    yield replace(span, start_s=middle_s)


def _begins(spans: Sequence[Span]) -> dict[int, float]:
    """By index of a span: when the last member of its exchange began."""
    found: dict[int, float] = {}
    for meeting in _meetings(spans):
        begin_s = max(spans[index].start_s for index in meeting)
        # who ended before the last began did not wait for it: what it sent was buffered
        found |= {index: begin_s for index in meeting if spans[index].end_s >= begin_s}
    return found


def _meetings(spans: Sequence[Span]) -> Iterator[Sequence[int]]:
    """The spans of each exchange whose members are all there."""
    messages: dict[tuple[object, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    groups: dict[tuple[object, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, span in enumerate(spans):
        if span.kind in (SpanKind.SEND, SpanKind.RECV) and len(span.peers) == 1:
            ends = (span.rank, *span.peers) if span.kind is SpanKind.SEND else (*span.peers, span.rank)
            messages[*ends, span.mb][span.rank].append(index)
        elif span.kind in COLLECTIVES and span.peers:
            groups[span.kind, frozenset((span.rank, *span.peers))][span.rank].append(index)
    for members in messages.values():
        yield from _in_order(members, 2)
    for (_, group), members in groups.items():
        yield from _in_order(members, len(group))  # type: ignore[arg-type]


def _in_order(members: dict[int, list[int]], size: int) -> Iterator[Sequence[int]]:
    """The first of each member, then the second, where all did as many."""
    if len(members) == size and len({len(indices) for indices in members.values()}) == 1:
        yield from zip(*members.values(), strict=True)
