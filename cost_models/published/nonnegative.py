"""Least squares without negative coefficients: no part of a price is less than nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ...errors import EstimateError

MOST_COLUMNS = 8
Point = tuple[float, float]


def nonnegative_fit(rows: Sequence[Sequence[float]], values: Sequence[float]) -> tuple[float, ...]:
    """The coefficients, none negative, that bring rows x coefficients nearest to the values.

    Every set of columns is solved on its own, and the best of those without a negative coefficient taken:
    exact, and the same on every machine; for a handful of columns.
    """
    matrix, wanted = np.asarray(rows, dtype=float), np.asarray(values, dtype=float)
    if matrix.ndim != 2 or not matrix.size or not np.isfinite(matrix).all() or not np.isfinite(wanted).all():
        raise EstimateError("nothing to fit", rule="a fit needs at least one row, and finite figures")
    columns = matrix.shape[1]
    if columns > MOST_COLUMNS:
        raise EstimateError(f"{columns} columns to fit", rule=f"a fit has at most {MOST_COLUMNS} columns")
    sizes = np.abs(matrix).max(axis=0)
    sizes[sizes == 0] = 1.0
    matrix = matrix / sizes  # a column far smaller than others would be taken for none
    best, least = np.zeros(columns), float(wanted @ wanted)
    for chosen in _subsets(columns):
        part = np.linalg.lstsq(matrix[:, chosen], wanted, rcond=None)[0]
        if (part < 0).any():
            continue
        missed = wanted - matrix[:, chosen] @ part
        if float(missed @ missed) < least:
            least = float(missed @ missed)
            best = np.zeros(columns)
            best[list(chosen)] = part
    return tuple(float(one) for one in best / sizes)


def _subsets(columns: int) -> Iterator[list[int]]:
    for size in range(1, columns + 1):
        yield from (list(chosen) for chosen in combinations(range(columns), size))


@dataclass(frozen=True, slots=True)
class Affine:
    """A price with a fixed part: seconds = fixed_s + each_s x size."""

    fixed_s: float
    each_s: float

    def __call__(self, size: float) -> float:
        return self.fixed_s + self.each_s * size


def affine_fit(points: Sequence[Point]) -> Affine:
    """The affine price nearest to measured (size, seconds), by relative error, no part of it negative."""
    rows = [(1 / seconds, size / seconds) for size, seconds in points if seconds > 0]
    if not rows:
        return Affine(0.0, 0.0)
    fixed, each = nonnegative_fit(rows, [1.0] * len(rows))
    return Affine(fixed, each)
