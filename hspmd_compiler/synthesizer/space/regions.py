"""Runs of steps that touch few of the live values: what they make of these is worked out once for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepPlace:
    """A step among the live values. take: places of its operands; keep: of values that stay live behind it;
    gives: which of its results are live then. saved: bytes that backward reads of these; beside: of values
    without a gradient that belong to it."""

    take: tuple[int, ...]
    keep: tuple[int, ...]
    gives: tuple[int, ...]
    saved: tuple[int, ...]
    beside: int


@dataclass(frozen=True, slots=True)
class StepRegion:
    """Steps [first, last). take: places, among the live values before them, of those that they read; keep: of
    those that stay live behind them, before what the steps make. places: of the steps among what is touched.
    """

    first: int
    last: int
    take: tuple[int, ...]
    keep: tuple[int, ...]
    places: tuple[StepPlace, ...]


@dataclass(frozen=True, slots=True)
class StepLiveness:
    """reads: values that each step reads; makes: values of its results. lives: those before each step, and
    behind the last one, in order."""

    reads: Sequence[Sequence[int]]
    makes: Sequence[Sequence[int]]
    lives: Sequence[tuple[int, ...]]

    def place(self, number: int, saved: Sequence[int] = (), beside: int = 0) -> StepPlace:
        """Of a step among all live values."""
        return self._place(number, self.lives[number], self.lives[number + 1], saved, beside)

    def _place(
        self, number: int, live: Sequence[int], after: Sequence[int], saved: Sequence[int], beside: int
    ) -> StepPlace:
        made = self.makes[number]
        return StepPlace(
            tuple(live.index(value) for value in self.reads[number]),
            tuple(place for place, value in enumerate(live) if value in after),
            tuple(place for place, value in enumerate(made) if value in after),
            tuple(saved),
            beside,
        )

    def region(self, first: int, last: int) -> StepRegion:
        """Of these steps."""
        before, behind = self.lives[first], self.lives[last]
        read = {value for step in self.reads[first:last] for value in step}
        live = tuple(value for value in before if value in read)
        places = []
        for number in range(first, last):
            later = {value for step in self.reads[number + 1 : last] for value in step}
            made = [value for value in self.makes[number] if value in self.lives[number + 1]]
            kept = [value for value in live if value in later or (value in behind and value not in before)]
            after = (*kept, *(value for value in made if value in later or value in behind))
            places.append(self._place(number, live, after, (), 0))
            live = after
        return StepRegion(
            first,
            last,
            tuple(place for place, value in enumerate(before) if value in read),
            tuple(place for place, value in enumerate(before) if value in behind),
            tuple(places),
        )


def bounds(first: int, last: int, moves: Sequence[bool]) -> list[tuple[int, int]]:
    """[first, last) of regions: each ends behind a step whose value may move."""
    found, start = [], first
    for number in range(first, last):
        if moves[number] or number + 1 == last:
            found.append((start, number + 1))
            start = number + 1
    return found
