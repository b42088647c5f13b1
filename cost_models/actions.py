"""A rank's instruction list, as the simulation takes it: what it computes, sends, receives, joins in."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from ..base.timeline import SpanKind


@dataclass(frozen=True, slots=True)
class Compute:
    """Seconds that the rank's device is at work."""

    seconds: float
    kind: SpanKind = SpanKind.OTHER
    label: str = ""
    position: int = -1
    mb: int = -1


@dataclass(frozen=True, slots=True)
class SendTo:
    """A message; the n-th of (sender, peer, tag) meets the peer's n-th receive of them. wire_s: alone."""

    peer: int
    tag: Hashable
    size_bytes: int
    wire_s: float
    label: str = ""
    position: int = -1
    mb: int = -1


@dataclass(frozen=True, slots=True)
class PostRecv:
    """The next receive of (peer, tag) is posted here, and waited for where its RecvFrom stands."""

    peer: int
    tag: Hashable


@dataclass(frozen=True, slots=True)
class RecvFrom:
    """Waits for a message; posts the receive where nothing did before."""

    peer: int
    tag: Hashable
    label: str = ""
    position: int = -1
    mb: int = -1


@dataclass(frozen=True, slots=True)
class FinishSends:
    """Waits until everything that the rank sent is through."""

    label: str = ""
    position: int = -1


@dataclass(frozen=True, slots=True)
class Meet:
    """A collective or a barrier: begins when the last of the group has come, and ends at once for all.

    It lasts as long as the longest `seconds` that a member gives. busy_s: of them, for which the member
    works on a processor, which it may share with others.
    """

    key: Hashable
    group: tuple[int, ...]
    seconds: float
    kind: SpanKind = SpanKind.COLLECTIVE
    label: str = ""
    position: int = -1
    mb: int = -1
    size_bytes: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StartSum:
    """A collective that goes on from here beside what its rank does, behind those that it has started before.

    It begins when the last of the group has started it. seconds, busy_s: as of a Meet.
    """

    key: Hashable
    group: tuple[int, ...]
    seconds: float
    kind: SpanKind = SpanKind.GRADIENT
    label: str = ""
    position: int = -1
    mb: int = -1
    size_bytes: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AwaitSum:
    """Waits for the end of a sum that the rank has started."""

    key: Hashable
    group: tuple[int, ...]
    kind: SpanKind = SpanKind.GRADIENT
    label: str = ""
    position: int = -1
    mb: int = -1


TimedAction = Compute | SendTo | PostRecv | RecvFrom | FinishSends | Meet | StartSum | AwaitSum
