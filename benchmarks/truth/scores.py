"""How far predictions are from measurements: the figures that every table shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

Pair = tuple[float, float]
"""(predicted, measured)"""


@dataclass(frozen=True, slots=True)
class Score:
    """Relative errors over a set of points. worst: the one of largest size, signed. rank: Spearman's rho."""

    points: int
    mape: float
    worst: float
    bias: float
    rank: float


def error(pair: Pair) -> float:
    """predicted / measured - 1."""
    return pair[0] / pair[1] - 1


def score(pairs: Sequence[Pair]) -> Score:
    """Of (predicted, measured); no pairs: all nan."""
    if not pairs:
        nothing = float("nan")
        return Score(0, nothing, nothing, nothing, nothing)
    errors = [error(pair) for pair in pairs]
    return Score(
        len(pairs), mean(abs(one) for one in errors), max(errors, key=abs), mean(errors), spearman(pairs)
    )


def spearman(pairs: Sequence[Pair]) -> float:
    """Correlation of ranks, ties at their mean rank; nan where all are alike."""
    left, right = _ranks([one for one, _ in pairs]), _ranks([one for _, one in pairs])
    center = (len(pairs) + 1) / 2
    both = sum((a - center) * (b - center) for a, b in zip(left, right, strict=True))
    spread = sum((a - center) ** 2 for a in left) * sum((b - center) ** 2 for b in right)
    return both / spread**0.5 if spread else float("nan")


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [order.index(one) + (order.count(one) + 1) / 2 for one in values]
