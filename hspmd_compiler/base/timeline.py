"""What every rank does when, as values: estimated by a simulation, or measured by a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class SpanKind(Enum):
    """What a rank does in a span of time."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STEP_VALUE = "step_value"
    SEND = "send"
    RECV = "recv"
    COLLECTIVE = "collective"
    GRADIENT = "gradient"
    GATHER = "gather"
    LOSS = "loss"
    UPDATE = "update"
    WAIT = "wait"
    OTHER = "other"


COMPUTING = frozenset(
    {SpanKind.FORWARD, SpanKind.BACKWARD, SpanKind.STEP_VALUE, SpanKind.UPDATE, SpanKind.OTHER}
)


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that a rank does without a break.

    position: index in the rank's instruction list, -1 for what is no instruction. mb: micro-batch, -1 for
    none. group: ranks of an exchange, of a meeting this one too, so that its members share one tuple.
    size_bytes: what the exchange moves. A span of no length is an instruction that the rank did not wait for.
    """

    rank: int
    start_s: float
    end_s: float
    kind: SpanKind
    label: str = ""
    position: int = -1
    mb: int = -1
    group: tuple[int, ...] = ()
    size_bytes: int = 0

    @property
    def peers(self) -> tuple[int, ...]:
        """The other ranks of an exchange."""
        if self.rank not in self.group:
            return self.group
        return tuple([rank for rank in self.group if rank != self.rank])

    @property
    def length_s(self) -> float:
        """Seconds from start to end."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """Bytes that a rank holds from this time on."""

    rank: int
    time_s: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans of one step of every rank, time 0 where the step begins. beside: sums that go on while a rank
    does something else.

    source: `estimated` or `measured`. labels: what a rank is, as `rank 3: A100, pipeline 0 stage 1`.
    The spans of a rank are in the order of their starts.
    """

    source: str
    spans: tuple[Span, ...]
    memory: tuple[MemoryPoint, ...] = ()
    labels: Mapping[int, str] = field(default_factory=dict)
    beside: tuple[Span, ...] = ()

    @property
    def end_s(self) -> float:
        """When the last rank has done its last."""
        return max((span.end_s for span in self.spans), default=0.0)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that do something, ascending."""
        return tuple(sorted({span.rank for span in self.spans}))

    def of(self, rank: int) -> tuple[Span, ...]:
        """The spans of one rank."""
        return tuple(span for span in self.spans if span.rank == rank)

    def busy_s(self, rank: int) -> float:
        """Seconds in which a rank does anything but wait."""
        return sum(span.length_s for span in self.of(rank) if span.kind is not SpanKind.WAIT)

    @property
    def hidden(self) -> float | None:
        """The part of the time of what goes on beside in which its rank computes; None where nothing does."""
        whole_s = sum(span.length_s for span in self.beside)
        if not whole_s:
            return None
        computing: dict[int, list[Span]] = {}
        for span in self.spans:
            if span.kind in COMPUTING:
                computing.setdefault(span.rank, []).append(span)
        together_s = sum(
            max(0.0, min(one.end_s, span.end_s) - max(one.start_s, span.start_s))
            for span in self.beside
            for one in computing.get(span.rank, ())
        )
        return together_s / whole_s

    def waits(self, rank: int) -> tuple[Span, ...]:
        """The spans in which a rank waits for others."""
        return tuple(span for span in self.of(rank) if span.kind is SpanKind.WAIT)
