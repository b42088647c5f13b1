"""At which weights of runs a search finds the program that waits least for its sums (see `hidden_sums.py`).

All weight goes to the run that the last program waits for, until one comes again; then between two runs,
where the lines of two programs cross. Exact where a program waits for the run that has all weight: it costs
what the bound is. Else the greatest bound seen is told beside the quickest program; weights between two runs
are tried only where more than half a percent is between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .fit import FoundAt
from .hidden_sums import RunWeights

MOST_SEARCHED, MOST_BETWEEN = 3, 2
"""Runs that get all weight, and weights of two that are tried after them."""
ALIKE = 1e-9
CLOSE = 0.005
"""Of a step: weights between two runs are tried as long as the gap is wider."""


@dataclass(slots=True)
class Balanced:
    """The quickest program that was found, the bound, and the weights that gave it with their program."""

    found: FoundAt
    parts: RunWeights
    of_bound: FoundAt

    @property
    def bound_s(self) -> float:
        return self.of_bound.seconds

    @property
    def is_proven(self) -> bool:
        """Whether nothing is quicker."""
        return self.found.step_s <= self.bound_s * (1 + ALIKE)

    @property
    def is_close(self) -> bool:
        """Whether what is quicker differs by less than prices tell."""
        return self.found.step_s <= self.bound_s * (1 + CLOSE)

    def saw(self, found: FoundAt, parts: RunWeights) -> None:
        """Another program."""
        if found.seconds > self.bound_s:
            self.of_bound, self.parts = found, parts
        if found.step_s < self.found.step_s:
            self.found = found


def balance(at: Callable[[RunWeights], FoundAt], run: int = 0) -> Balanced:
    """The quickest program, as far as weights of two runs tell. run: that gets all weight first."""
    found = at({run: 1.0})
    best, tried = Balanced(found, {run: 1.0}, found), {run: found}
    while not best.is_proven and found.waited not in tried and len(tried) < MOST_SEARCHED:
        run = found.waited
        found = tried[run] = at({run: 1.0})
        best.saw(found, {run: 1.0})
    if not best.is_close and found.waited in tried:
        _between(at, best, (found.waited, run), (tried[found.waited], found))
    return best


def _between(
    at: Callable[[RunWeights], FoundAt], best: Balanced, runs: tuple[int, int], ends: tuple[FoundAt, FoundAt]
) -> None:
    """Weights of two runs, from the programs found at either."""

    def line(found: FoundAt) -> tuple[float, float]:
        first, last = (found.series_s + found.exposed[run] for run in runs)
        return first, last - first

    low, high = map(line, ends)
    for _ in range(MOST_BETWEEN):
        if low[1] <= 0 or high[1] >= 0:
            return
        part = min(1.0, max(0.0, (high[0] - low[0]) / (low[1] - high[1])))
        parts = {runs[0]: 1 - part, runs[1]: part}
        found = at(parts)
        best.saw(found, parts)
        if best.is_close or found.seconds >= (low[0] + part * low[1]) * (1 - ALIKE):
            return
        here = line(found)
        low, high = (here, high) if here[1] > 0 else (low, here)
