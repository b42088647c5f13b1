"""What the page's script draws, as JSON of bounded size: spans, memory over time, bytes between ranks.

Times are whole nanoseconds from the begin of the step; texts are numbers in a table of `texts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ...base.codec import Json
from ...base.number_ranges import number_ranges
from ...base.timeline import MemoryPoint, Span, SpanKind, Timeline
from ...base.trace_file import nanoseconds
from ...cost_models.align import Alignment, InstructionPair, begin_s
from ..alignment_page import lag_text, own_text
from .kinds import LOOKS
from .places import LabelledRank

MOST_SPANS = 300_000
"""Of a page, both timelines together: more are drawn as one where they lie close together."""
MOST_POINTS = 60_000
MOST_CELLS = 128
"""Of a side of the matrix: more ranks are added up in blocks."""
MOST_TEXTS = 10_000
LONGEST_TEXT = 100
FIELDS = 8
"""Numbers of a span: start, length, kind, label, position, micro-batch, peers, bytes."""
KINDS = {kind: number for number, kind in enumerate(SpanKind)}


@dataclass(slots=True)
class TextTable:
    """Texts by number, each once; 0 is the empty one, also in place of what is too much."""

    numbers: dict[str, int] = field(default_factory=lambda: {"": 0})

    def number(self, text: str) -> int:
        text = text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3] + "..."
        if text not in self.numbers and len(self.numbers) >= MOST_TEXTS:
            return 0
        return self.numbers.setdefault(text, len(self.numbers))


def drawn(
    timelines: Sequence[Timeline],
    places: Sequence[LabelledRank],
    capacity: Mapping[int, int],
    traffic: Mapping[tuple[int, int], int],
    alignment: Alignment | None,
) -> Json:
    """Everything that the script needs."""
    texts = TextTable()
    rows = {place.rank: number for number, place in enumerate(places)}
    budget = max(2, MOST_SPANS // max(1, len(rows) * len(timelines)))
    points = max(2, MOST_POINTS // max(1, len(rows) * len(timelines)))
    lines: list[Json] = [_line(line, rows, texts, budget, points) for line in timelines]
    return {
        "end": max((_from_begin(line)(line.end_s) for line in timelines), default=0),
        "lines": lines,
        "rows": _rows(places, capacity),
        "marks": list(_marks(alignment, rows)),
        "matrix": _matrix(traffic, places),
        "kinds": [{"title": LOOKS[kind].title, "colour": LOOKS[kind].colour} for kind in SpanKind],
        "wait": KINDS[SpanKind.WAIT],
        "texts": list(texts.numbers),
    }


def _rows(places: Sequence[LabelledRank], capacity: Mapping[int, int]) -> list[Json]:
    """lead: the first of its group, which stands for the others."""
    found: list[Json] = []
    for group, members in groupby(places, key=lambda place: place.group):
        for number, place in enumerate(members):
            held = capacity.get(place.rank, 0)
            row: dict[str, Json] = {"rank": place.rank, "title": place.title, "group": group}
            found.append({**row, "lead": number == 0, "capacity": held})
    return found


def _from_begin(line: Timeline) -> Callable[[float], int]:
    begin = nanoseconds(begin_s(line))
    return lambda time_s: nanoseconds(time_s) - begin


def _line(line: Timeline, rows: Mapping[int, int], texts: TextTable, budget: int, points: int) -> Json:
    at, spans, memory = _from_begin(line), _by_row(line.spans, rows), _by_row(line.memory, rows)
    end_s, start_s = line.end_s, begin_s(line)
    return {
        "source": line.source,
        "spans": [list(_numbers(coarse(some, start_s, end_s, budget), at, texts)) for some in spans],
        "memory": [list(_points(some, at, start_s, end_s, points)) for some in memory],
    }


def _by_row(items: Sequence, rows: Mapping[int, int]) -> list[list]:  # type: ignore[type-arg]
    found: list[list] = [[] for _ in rows]  # type: ignore[type-arg]
    for item in items:
        found[rows[item.rank]].append(item)
    return found


def _numbers(spans: Sequence[Span], at: Callable[[float], int], texts: TextTable) -> Iterator[Json]:
    """The fields of each span, its start counted from the one before."""
    last = 0
    for span in spans:
        start = at(span.start_s)
        peers = number_ranges(span.peers) if span.peers else ""
        yield from (start - last, at(span.end_s) - start, KINDS[span.kind], texts.number(span.label))
        yield from (span.position, span.mb, texts.number(peers), span.size_bytes)
        last = start


def coarse(spans: Sequence[Span], start_s: float, end_s: float, budget: int) -> list[Span]:
    """At most `budget` spans in the order of their starts: those that lie in one part of the step are one."""
    some = sorted((span for span in spans if span.end_s > span.start_s), key=lambda span: span.start_s)
    if len(some) <= budget:
        return some
    parts = 16 * budget
    while True:
        groups = _parts(some, start_s, end_s, parts)
        if len(groups) <= budget or parts == 1:
            return [_merged(group) for group in groups]
        parts = max(1, parts // 2)


def _parts(spans: Sequence[Span], start_s: float, end_s: float, parts: int) -> list[list[Span]]:
    """Neighbours that lie in one of as many equal parts of the step; one that lies in several is alone."""
    width_s = (end_s - start_s) / parts

    def part(span: Span) -> int:
        low, high = (min(parts - 1, int((time - start_s) / width_s)) for time in (span.start_s, span.end_s))
        return low if low == high else -1 - high

    return [list(group) for _, group in groupby(spans, key=part)]


def _merged(spans: Sequence[Span]) -> Span:
    """One span in place of several, of the kind that takes the most time in them."""
    if len(spans) == 1:
        return spans[0]
    seconds: Counter[SpanKind] = Counter()
    for span in spans:
        seconds[span.kind] += span.length_s  # type: ignore[assignment]
    kind = max(seconds, key=lambda kind: (seconds[kind], -KINDS[kind]))
    end_s, size = max(span.end_s for span in spans), sum(span.size_bytes for span in spans)
    return Span(spans[0].rank, spans[0].start_s, end_s, kind, f"{len(spans)} spans", size_bytes=size)


def _points(
    points: Sequence[MemoryPoint], at: Callable[[float], int], start_s: float, end_s: float, budget: int
) -> Iterator[Json]:
    """Time and bytes of each point; of those that lie close together the largest."""
    some = sorted(points, key=lambda point: point.time_s)
    if len(some) > budget:
        width_s = max(end_s - start_s, 1e-9) / budget
        near = groupby(
            some, key=lambda point: min(budget - 1, max(0, int((point.time_s - start_s) / width_s)))
        )
        some = [max(group, key=lambda point: point.bytes) for _, group in near]
    last = 0
    for point in some:
        now = at(point.time_s)
        yield from (now - last, point.bytes)
        last = now


def _marks(alignment: Alignment | None, rows: Mapping[int, int]) -> Iterator[Json]:
    """Where the timelines part: the first place, then the largest ones."""
    if alignment is None:
        return
    if alignment.first is not None:
        yield _mark("first", lag_text(alignment.first), alignment.first, rows)
    for each in alignment.largest:
        yield _mark("largest", own_text(each), each.pair, rows)


def _mark(what: str, text: str, pair: InstructionPair, rows: Mapping[int, int]) -> Json:
    both = (pair.estimated, pair.measured)
    times: list[Json] = [[nanoseconds(each.start_s), nanoseconds(each.end_s)] for each in both]
    return {"what": what, "text": text, "row": rows[pair.rank], "times": times}


def sent(timeline: Timeline) -> dict[tuple[int, int], int]:
    """(from, to): bytes of messages, as the sends of a timeline tell."""
    found: Counter[tuple[int, int]] = Counter()
    for span in timeline.spans:
        if span.kind is SpanKind.SEND and len(span.peers) == 1 and span.size_bytes:
            found[span.rank, span.peers[0]] += span.size_bytes
    return dict(found)


def _matrix(traffic: Mapping[tuple[int, int], int], places: Sequence[LabelledRank]) -> Json:
    """Cells that hold something: the block of the sender, that of the receiver, bytes."""
    ranks = sorted({place.rank for place in places}.union(*traffic))
    block = -(-len(ranks) // MOST_CELLS) or 1
    number = {rank: index // block for index, rank in enumerate(ranks)}
    cells: Counter[tuple[int, int]] = Counter()
    for (source, target), size in traffic.items():
        cells[number[source], number[target]] += size
    names: list[Json] = [
        number_ranges(ranks[low : low + block])[:LONGEST_TEXT] for low in range(0, len(ranks), block)
    ]
    return {"names": names, "cells": [[*ends, size] for ends, size in sorted(cells.items()) if size]}
