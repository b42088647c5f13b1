"""Ratio vectors in whole units: what each rank gets of so many heads, experts, channels or samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..layout.shares import assign_units

Shares = tuple[float, ...]
ANY, SAMPLES = 0, -1
"""In place of a number of units: parts of any size, and each group's own samples."""


@dataclass(slots=True)
class WholeShares:
    """vertices: of each group, its ratio vectors. samples: of each group, 0 where they are not counted.
    lanes: the ranks that each stands for, as (group, place)."""

    vertices: Sequence[tuple[Shares, ...]]
    samples: Sequence[int]
    lanes: Sequence[Sequence[tuple[int, int]]]
    _known: dict[tuple[int, int], tuple[Shares, ...]] = field(default_factory=dict)
    _of_lanes: dict[tuple[int, int], Shares] = field(default_factory=dict)
    _longer: dict[tuple[tuple[int, int], ...], float] = field(default_factory=dict)

    def vectors(self, vertex: int, units: int = ANY) -> tuple[Shares, ...]:
        """The shares of each group's ranks."""
        key = (vertex, units)
        if key not in self._known:
            counts = self.samples if units == SAMPLES else [units] * len(self.vertices)
            pairs = [(own[vertex], count) for own, count in zip(self.vertices, counts, strict=True)]
            made = {pair: _handed_out(*pair) for pair in dict.fromkeys(pairs)}
            self._known[key] = tuple([made[pair] for pair in pairs])
        return self._known[key]

    def of_lanes(self, vertex: int, units: int = ANY) -> Shares:
        """Of the ranks that a lane stands for the largest: of equal weights the first have what is odd."""
        key = (vertex, units)
        if key not in self._of_lanes:
            vectors = self.vectors(vertex, units)
            self._of_lanes[key] = tuple(
                [max([vectors[group][place] for group, place in ranks]) for ranks in self.lanes]
            )
        return self._of_lanes[key]

    def longer(self, *cuts: tuple[int, int]) -> float:
        """How many times as long the longest piece is as the ratio vectors have it. cuts: (vertex, units)."""
        if cuts not in self._longer:
            ideal = [self.vectors(vertex) for vertex, _ in cuts]
            whole = [self.vectors(*cut) for cut in cuts]
            pairs = {*zip(zip(*ideal, strict=True), zip(*whole, strict=True), strict=True)}
            self._longer[cuts] = max(max(map(max, after)) / max(map(max, before)) for before, after in pairs)
        return self._longer[cuts]


def _handed_out(shares: Shares, units: int) -> Shares:
    return tuple([one / units for one in assign_units(units, shares)]) if units else shares
