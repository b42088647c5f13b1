"""A link: what a message costs on it, from two figures or from a measured curve."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate
from math import exp, log
from typing import TypeAlias

from ..base.quantities import Bandwidth, Duration

Curve: TypeAlias = tuple[tuple[int, float], ...]


class LinkKind(StrEnum):
    """What a link is made of, from the nearest to the farthest."""

    LOCAL = "local"
    NVLINK = "nvlink"
    FABRIC = "fabric"
    PCIE = "pcie"
    SWITCH = "switch"
    NETWORK = "network"


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """bandwidth: bytes per second in one direction. latency: seconds of an empty message.

    curve: measured (bytes, seconds) of one message, ascending by bytes. It holds where it has points;
    above its last point a byte more costs what `bandwidth` says, below its first one a byte less saves it.
    """

    bandwidth: Bandwidth
    latency: Duration = 0.0
    kind: LinkKind | None = None
    curve: Curve = ()

    def seconds(self, size_bytes: float) -> float:
        """Of one message that has the link for itself."""
        if not self.curve:
            return self.latency + size_bytes / self.bandwidth
        curve = _repaired(self.curve)
        (least, first_s), (most, last_s) = curve[0], curve[-1]
        if size_bytes >= most:
            return last_s + (size_bytes - most) / self.bandwidth
        if size_bytes <= least:
            return min(first_s, max(self.latency, first_s - (least - size_bytes) / self.bandwidth))
        return _between(curve, size_bytes)


def _between(curve: Curve, size_bytes: float) -> float:
    """Straight lines between the points, in logarithms of both."""
    high = bisect_left(curve, size_bytes, key=lambda point: point[0])
    (low_bytes, low_s), (high_bytes, high_s) = curve[high - 1], curve[high]
    part = log(size_bytes / low_bytes) / log(high_bytes / low_bytes)
    return min(high_s, max(low_s, exp(log(low_s) * (1 - part) + log(high_s) * part)))


@lru_cache(maxsize=256)
def _repaired(curve: Curve) -> Curve:
    """A larger message is no faster: where one was measured so, the smaller ones are as fast."""
    best = list(accumulate((seconds for _, seconds in reversed(curve)), min))[::-1]
    return tuple((size, seconds) for (size, _), seconds in zip(curve, best, strict=True))
