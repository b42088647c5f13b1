"""Which work the end of a step waits for: back from the last end, each time to who was waited for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from ...base.timeline import COMPUTING, Span, SpanKind, Timeline

EPSILON = 1e-9
LinkName = Callable[[int, int], str]


@dataclass(frozen=True, slots=True)
class PathShare:
    """Part of the critical path. kind: `compute` of a rank, or `link`, with rank -1. share: of the step."""

    kind: str
    name: str
    rank: int
    seconds: float
    share: float


def critical_path(timeline: Timeline, link_name: LinkName) -> list[PathShare]:
    """What the longest chain of work consists of, most first."""
    end = timeline.end_s
    if not end:
        return []
    walk = _Walk(timeline, link_name)
    walk.run()
    shares = [
        PathShare(kind, name, rank, seconds, seconds / end)
        for (kind, name, rank), seconds in walk.found.items()
        if seconds > EPSILON
    ]
    return sorted(shares, key=lambda share: -share.seconds)


class _Walk:
    """From the end back to the beginning."""

    def __init__(self, timeline: Timeline, link_name: LinkName) -> None:
        self.spans: dict[int, list[Span]] = {}
        for span in timeline.spans:
            if span.length_s > EPSILON:
                self.spans.setdefault(span.rank, []).append(span)
        self.ends = {rank: [span.end_s for span in spans] for rank, spans in self.spans.items()}
        self.link_name = link_name
        self.found: dict[tuple[str, str, int], float] = {}
        self.most = sum(map(len, self.spans.values())) + len(self.spans)

    def run(self) -> None:
        """Every span on the path once."""
        rank = max(self.ends, key=lambda one: self.ends[one][-1])
        time = self.ends[rank][-1]
        for _ in range(self.most):
            span = self._before(rank, time)
            if span is None:
                return
            if span.kind is SpanKind.WAIT:
                rank, time = self._waited_for(span)
                continue
            self._count(span, min(span.end_s, time) - span.start_s)
            time = span.start_s

    def _before(self, rank: int, time: float) -> Span | None:
        """The last span of a rank that ends by then."""
        index = bisect_right(self.ends.get(rank, []), time + EPSILON) - 1
        return self.spans[rank][index] if index >= 0 else None

    def _waited_for(self, wait: Span) -> tuple[int, float]:
        """The rank that came last, busy until then; else what this one did before it waited."""
        for peer in wait.peers:
            span = self._before(peer, wait.end_s)
            if span is not None and span.kind is not SpanKind.WAIT and span.end_s > wait.end_s - EPSILON:
                return peer, wait.end_s
        return wait.rank, wait.start_s

    def _count(self, span: Span, seconds: float) -> None:
        key = ("compute", f"rank {span.rank}", span.rank)
        if span.kind not in COMPUTING and span.peers:
            names = {self.link_name(span.rank, peer) for peer in span.peers}
            across = [name for name in sorted(names) if not name.startswith("inside ")]
            key = ("link", (across or sorted(names))[0], -1)
        self.found[key] = self.found.get(key, 0.0) + seconds
