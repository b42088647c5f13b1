"""Seconds of a layer by micro-batch size, from a few measured sizes.

b times the time of one sample is off by up to 76 % where the host limits small micro-batches; the affine form
outside what was measured by 1 to 11 % (a fit on sizes 1, 2, 4 against the measured size 8, on six devices).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...errors import EstimateError
from .nonnegative import Affine, Point, affine_fit


def repaired(points: Iterable[Point]) -> tuple[Point, ...]:
    """Points by size, no smaller micro-batch slower than a larger one: that would be noise of measuring.

    Each takes the least of itself and all larger ones.
    """
    lowest = float("inf")
    found: list[Point] = []
    for size, seconds in sorted(points, reverse=True):
        lowest = min(lowest, seconds)
        found.append((size, lowest))
    return tuple(reversed(found))


@dataclass(frozen=True, slots=True)
class SizeCurve:
    """Seconds by micro-batch size: straight lines between measured sizes, affine outside them.

    points: (size, seconds), ascending by both, see `repaired`. more_s: seconds of a further sample, for a
    curve of one point; not told: that sample's time over again.
    """

    points: tuple[Point, ...]
    more_s: float | None = None
    _outside: Affine = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        if not sizes or sizes != sorted(set(sizes)) or sizes[0] <= 0:
            raise EstimateError(
                "a layer's times can't be read",
                details=[("sizes", str(sizes))],
                rule="micro-batch sizes are positive and ascend, and there is at least one",
            )
        outside = affine_fit(self.points) if len(sizes) > 1 else Affine(*self._of_one_point())
        object.__setattr__(self, "_outside", outside)

    def _of_one_point(self) -> tuple[float, float]:
        (size, seconds), more = self.points[0], self.more_s
        each = seconds / size if more is None else min(more, seconds / size)
        return seconds - size * each, each

    def seconds(self, size: float) -> float:
        """Seconds of a micro-batch of this size; never less than of a smaller one."""
        (first, first_s), (last, last_s) = self.points[0], self.points[-1]
        if size == first:
            return first_s
        if size < first:
            return min(first_s, self._outside(size))
        if size > last:
            return max(last_s, self._outside(size))
        place = max(1, bisect_left(self.points, size, key=lambda point: point[0]))
        (low, low_s), (high, high_s) = self.points[place - 1], self.points[place]
        part = (size - low) / (high - low)
        return low_s * (1 - part) + high_s * part


def size_curve(points: Iterable[Point], more_s: float | None = None) -> SizeCurve:
    """The curve through measured points, noise repaired."""
    return SizeCurve(repaired(points), more_s)


def backward_from_forward(forward_s: float, work_s: float) -> float:
    """Backward of a layer of which only forward is measured.

    It launches and exchanges what forward does, and does forward's arithmetic twice. work_s: the part of
    forward that is arithmetic. Where nothing but arithmetic takes time this is twice
    the forward; where the host or an exchange does, that is too much: on the published profiles of GH200 at
    4-way tensor parallelism and one sample 1.5 ms forward and 1.7 backward, of which this tells 1.8.
    """
    return forward_s + work_s
