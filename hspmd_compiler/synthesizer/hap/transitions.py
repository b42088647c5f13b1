"""What one operator may do with the placements that its operands have: the steps of the search.

Operators that are alike have the same steps, so each kind of block is priced once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from .costs import HapPrices, Seconds
from .operators import HapAlternative, HapOperator, HapValue, cut, cut_of, following, is_cut, members

HapEntry = int
"""What is known of a live value: the set of its placements, and in bit 0 if its one exchange is spent."""


def fresh(placement: int) -> HapEntry:
    return 2 << placement


class HapMove(NamedTuple):
    """An exchange in front of an operator. operand: its place among the operator's."""

    operand: int
    before: int
    after: int


class HapStep(NamedTuple):
    """A way through an operator. kept: what is known of live operands and results behind it.

    placements: of the operands, as they are used.
    """

    kept: tuple[HapEntry, ...]
    seconds: float
    compute_s: float
    alternative: HapAlternative
    vector: int
    placements: tuple[int, ...]
    moves: tuple[HapMove, ...]


@dataclass(slots=True)
class HapSteps:
    """Of operators that are alike in all that a step depends on, by the entries of their operands.

    survivors: operands, without doubles, that are read later. crossing: operands of an earlier segment, whose
    slices are taken for those of this one's vector: HAP does not price how they come to be so.
    """

    operator: HapOperator
    prices: HapPrices
    operands: tuple[HapValue, ...]
    survivors: tuple[int, ...]
    crossing: frozenset[int]
    live_results: tuple[int, ...]
    known: dict[tuple[int | None, tuple[HapEntry, ...]], list[HapStep]] = field(default_factory=dict)

    def through(self, vector: int | None, entries: tuple[HapEntry, ...]) -> list[HapStep]:
        """All ways, the cheapest for each outcome. vector: the one that cuts follow, None: any."""
        key = vector, entries
        if key not in self.known:
            best: dict[tuple[HapEntry, ...], HapStep] = {}
            for step in self._steps(vector, dict(enumerate(entries))):
                old = best.get(step.kept)
                if old is None or step.seconds < old.seconds:
                    best[step.kept] = step
            self.known[key] = list(best.values())
        return self.known[key]

    def _steps(self, vector: int | None, entries: Mapping[int, HapEntry]) -> Iterator[HapStep]:
        allowed = range(len(self.prices.vectors)) if vector is None else (vector,)
        for alternative in self.operator.rule.alternatives:
            cuts = any(map(is_cut, (*alternative.needs, *alternative.gives)))
            for one in allowed if cuts else allowed[:1]:
                yield from self._ways(alternative, one, entries)

    def _ways(
        self, alternative: HapAlternative, vector: int, entries: Mapping[int, HapEntry]
    ) -> Iterator[HapStep]:
        """Each operand has the placement, or is exchanged; one of an earlier segment may keep its vector."""
        options = [
            self._placements(operand, following(need, vector))
            for operand, need in enumerate(alternative.needs)
        ]
        for wanted in product(*options):
            found = self._way(alternative, vector, wanted, dict(entries))
            if found is not None:
                yield found

    def _placements(self, operand: int, need: int) -> list[int]:
        if operand not in self.crossing or not is_cut(need):
            return [need]
        dim, _ = cut_of(need)
        return [cut(dim, vector) for vector in range(len(self.prices.vectors))]

    def _way(
        self, alternative: HapAlternative, vector: int, wanted: tuple[int, ...], entries: dict[int, HapEntry]
    ) -> HapStep | None:
        volumes: list[Seconds] = []
        moves: list[HapMove] = []
        for operand, placement in enumerate(wanted):
            value = self.operator.inputs[operand]
            if value.leaf is not None:
                volume = self.prices.load(value, placement)
            else:
                place = self.operands.index(value)
                entry = entries[place]
                if entry >> 1 >> placement & 1:
                    continue
                volume, before = self._cheapest(value, entry, placement)
                moves.append(HapMove(operand, before, placement))
                entries[place] = (entry | fresh(placement)) | 1
            if volume is None:
                return None
            volumes.append(volume)
        compute = self._compute(alternative, wanted)
        exchange = max(map(sum, zip(*volumes, strict=True))) if volumes else 0.0
        results = tuple(fresh(following(alternative.gives[index], vector)) for index in self.live_results)
        kept = tuple(entries[index] for index in self.survivors) + results
        return HapStep(kept, compute + exchange, compute, alternative, vector, wanted, tuple(moves))

    def _cheapest(self, value: HapValue, entry: HapEntry, placement: int) -> tuple[Seconds | None, int]:
        """The exchange of a value that may still be made."""
        best: Seconds | None = None
        source = -1
        if value.exchangeable and not entry & 1:
            for before in members(entry >> 1):
                found = self.prices.exchange(value, before, placement)
                if found is not None and (best is None or max(found) < max(best)):
                    best, source = found, before
        return best, source

    def _compute(self, alternative: HapAlternative, wanted: tuple[int, ...]) -> float:
        by = decisive_cut(self.operator, wanted) if alternative.shared else None
        return self.prices.compute(self.operator.rule.flops, by)


def decisive_cut(operator: HapOperator, placements: tuple[int, ...]) -> tuple[HapValue, int]:
    """Flops that are shared out follow the slices, as they lie, of the first cut operand that an operator
    made, else of the first cut leaf."""
    cuts = [
        (value, placement)
        for value, placement in zip(operator.inputs, placements, strict=True)
        if is_cut(placement)
    ]
    return min(cuts, key=lambda one: one[0].leaf is not None)
