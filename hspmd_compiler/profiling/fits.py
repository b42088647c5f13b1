"""Seconds as a sum of non-negative parts of what they were measured for, by weighted least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ..cluster.calibration import Fit

SHORTEST_S = 1e-9
"""Of a sample: a clock that stood still says nothing of how far off a fit is."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one measurement took. size_bytes: read and written, or moved."""

    seconds: float
    flops: float = 0.0
    size_bytes: float = 0.0


def fit(samples: Sequence[Sample], relative: float = 1.0) -> Fit:
    """The fixed part, and those per flop and per byte, that come nearest to the samples.

    relative: 1 where a short sample is to be met as well as a long one, in parts of itself; 0 where seconds
    count; between them for what adds up, as operators do. Of parts that grow with each other in all samples
    one is taken: which of them can't be told.
    """
    seconds = np.array([max(sample.seconds, SHORTEST_S) for sample in samples])
    columns = np.array([[1.0, sample.flops, sample.size_bytes] for sample in samples])
    scales = np.maximum(columns.max(axis=0), SHORTEST_S)
    weights = seconds**-relative
    parts = non_negative(columns / scales * weights[:, None], seconds * weights) / scales
    off = np.abs(columns @ parts / seconds - 1.0)
    fixed_s, per_flop_s, per_byte_s = (float(part) for part in parts)
    return Fit(fixed_s, per_flop_s, per_byte_s, float(np.median(off)))


def non_negative(columns: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """x >= 0 with the least |columns x - wanted|: the best of all choices of columns, for there are few."""
    count = columns.shape[1]
    best, least = np.zeros(count), float(np.sum(wanted**2))
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            part = columns[:, chosen]
            found, *_ = np.linalg.lstsq(part, wanted, rcond=1e-9)
            error = float(np.sum((part @ found - wanted) ** 2))
            if (found >= 0).all() and error < least * (1 - 1e-9):
                best, least = np.zeros(count), error
                best[list(chosen)] = found
    return best


def middle(seconds: Sequence[float]) -> float:
    """Of repeated measurements: the lower quartile. Other work on a machine only adds to them."""
    return float(np.quantile(seconds, 0.25, method="inverted_cdf"))


def spread(seconds: Sequence[float]) -> float:
    """How far half of the measurements are from the middle of them, relative to it."""
    center = float(np.median(seconds))
    return float(np.median(np.abs(np.array(seconds) - center))) / max(center, SHORTEST_S)
