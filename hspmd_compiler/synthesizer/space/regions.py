"""Runs of steps that touch few of the live values: what they make of these is worked out once for others.

A block is cut where few values are live, each part where a value may move. A value that lives on through
many blocks then counts only in the parts that read it, and in the walk from part to part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Bounds = list[tuple[int, int]]
"""[first, last) of runs of steps, one behind another."""


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
    """Steps from `first` on. take: places, among the live values before them, of those that they read; keep:
    of those that stay live behind them, before what the steps make. parts: smaller regions, among what is
    touched; places: of the steps of one without parts. level: how often parts have parts again.
    """

    first: int
    level: int
    take: tuple[int, ...]
    keep: tuple[int, ...]
    parts: tuple[StepRegion, ...] = ()
    places: tuple[StepPlace, ...] = ()


@dataclass(frozen=True, slots=True)
class StepLiveness:
    """reads: values that each step reads; makes: values of its results. lives: those before each step, and
    behind the last one, in order; of a run of steps, by the step's number."""

    reads: Sequence[Sequence[int]]
    makes: Sequence[Sequence[int]]
    lives: Mapping[int, tuple[int, ...]]

    def place(self, number: int, saved: Sequence[int] = (), beside: int = 0) -> StepPlace:
        """Of a step among these live values."""
        live, after, made = self.lives[number], self.lives[number + 1], self.makes[number]
        return StepPlace(
            tuple(live.index(value) for value in self.reads[number]),
            tuple(place for place, value in enumerate(live) if value in after),
            tuple(place for place, value in enumerate(made) if value in after),
            tuple(saved),
            beside,
        )

    def within(self, first: int, last: int) -> StepLiveness:
        """Of these steps, among the values that they read or make."""
        before, behind = self.lives[first], set(self.lives[last])
        last_read = {value: number for number in range(first, last) for value in self.reads[number]}
        ends = last_read | dict.fromkeys(behind.difference(before), last)
        live = tuple(value for value in before if value in last_read)
        lives = {first: live}
        for number in range(first, last):
            made = [value for value in self.makes[number] if value in self.lives[number + 1]]
            live = tuple(value for value in (*live, *made) if ends.get(value, first) > number)
            lives[number + 1] = live
        return StepLiveness(self.reads, self.makes, lives)

    def region(self, first: int, last: int, levels: Sequence[Bounds] = ()) -> StepRegion:
        """Of these steps. levels: bounds of its parts, then of their parts."""
        before, behind = self.lives[first], self.lives[last]
        within = self.within(first, last)
        read = within.lives[first]
        parts = [one for one in levels[0] if first <= one[0] and one[1] <= last] if levels else []
        return StepRegion(
            first,
            len(levels),
            tuple(place for place, value in enumerate(before) if value in read),
            tuple(place for place, value in enumerate(before) if value in behind),
            tuple(within.region(*part, levels[1:]) for part in parts),
            () if parts else tuple(map(within.place, range(first, last))),
        )


def bounds(first: int, last: int, moves: Sequence[bool]) -> Bounds:
    """Each ends behind a step whose value may move. moves: of these steps."""
    found, start = [], first
    for number, is_end in enumerate(moves, first):
        if is_end or number + 1 == last:
            found.append((start, number + 1))
            start = number + 1
    return found


def waists(parts: Bounds, live: Sequence[int]) -> Bounds:
    """Runs of parts: each ends where fewer values are live than a part later, and no more than a part before.

    live: how many there are behind each part.
    """
    found, start = [], parts[0][0]
    for place, (_, last) in enumerate(parts):
        is_end = place + 1 == len(parts)
        if is_end or (live[place] < live[place + 1] and (not place or live[place] <= live[place - 1])):
            found.append((start, last))
            start = last
    return found
