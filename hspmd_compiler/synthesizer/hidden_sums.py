"""Sums of gradients that go on beside the backward pass: what of them a step still waits for.

Gradients are summed in runs of steps, from the last to the first. A run starts when the backward half of
its first step is over, and each rank makes one sum after the other. So what is left when the pass ends is the
most of any run: the sums of it and of all before it in the model, less the backward halves of all steps
before it.

Variables: a weight of each run, of 1 together. Objective: what a program takes if these weighted exposures
stand for the most, which no choice of weights overestimates: the least price at any weights is a bound on
every program. At weights of runs, prices of steps are sums again: before the end of a run sums count, and
before its start backward halves do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import NamedTuple

from ..ir.graph import ParamInfo
from ..passes.gradients.bucket_size import BucketSize, cheapest_size
from .machine import SearchMachine
from .param_prices import SUM_BYTES
from .space.search_space import SearchSpace


class SumWeight(NamedTuple):
    """Of a step: how much its gradients' sums count, and how much less its backward half does."""

    sums: float
    backward: float


SERIES = SumWeight(1.0, 0.0)
"""Where sums begin when the backward pass has ended."""


class StepSeconds(NamedTuple):
    """Of a step: sums that can go on beside a backward pass, and its own backward half, of the last
    micro-batch."""

    place: int
    sums_s: float
    backward_s: float


class SumRun(NamedTuple):
    """Steps whose gradients are summed together. first: 0 of the run that is summed last."""

    first: int
    last: int


RunWeights = Mapping[int, float]
"""By number of a run, 0 the first in the model; those without any are left out."""


@dataclass(frozen=True, slots=True)
class HiddenSums:
    """runs: in the order of the model; fewer than two hide nothing. steps: of the walk. most_s: no sums that
    can be hidden take longer."""

    runs: tuple[SumRun, ...]
    steps: int
    most_s: float = 0.0

    @classmethod
    def of(cls, space: SearchSpace, machine: SearchMachine, asked: int | None) -> HiddenSums:
        """asked: bytes of a run, None: what costs least."""
        sizes = _gradient_bytes(space)
        total = sum(sizes.values())
        if asked == 0 or machine.copies == 1 or not total:
            return cls((), len(space.steps))
        whole, pieces = machine.all_reduces, machine.piece_reduces
        sums = whole if whole.lines else pieces
        size = BucketSize(asked, asked) if asked else cheapest_size(sums.seconds, total)
        params = [_bytes(info) for info in space.graph.params.values() if info.trainable]
        most_s = sum(max(whole.seconds(one), pieces.seconds(one)) for one in params)
        return cls(tuple(_runs(sizes, size)), len(space.steps), most_s)

    @property
    def hides(self) -> bool:
        """Whether any sum starts before the pass ends."""
        return len(self.runs) > 1

    def weights(self, parts: RunWeights) -> list[SumWeight]:
        """Of each step."""
        sums, backward = [0.0] * (self.steps + 1), [0.0] * (self.steps + 1)
        for number, part in parts.items():
            sums[self.runs[number].last] += part
            backward[self.runs[number].first - 1] += part if self.runs[number].first else 0.0
        found = [list(accumulate(reversed(each[: self.steps]))) for each in (sums, backward)]
        return [
            SumWeight(*(round(one, 12) for one in pair)) for pair in zip(*map(reversed, found), strict=True)
        ]

    def exposed(self, seconds: Sequence[StepSeconds]) -> list[float]:
        """By run what is left behind the pass if it is the run that is waited for."""
        sums, backward = [0.0] * (self.steps + 1), [0.0] * (self.steps + 1)
        for place, sum_s, backward_s in seconds:
            sums[place + 1] += sum_s
            backward[place + 1] += backward_s
        sums, backward = list(accumulate(sums)), list(accumulate(backward))
        return [sums[run.last + 1] - backward[run.first] for run in self.runs]


def _bytes(info: ParamInfo) -> int:
    return prod(info.shape) * max(SUM_BYTES, info.dtype.itemsize)


def _gradient_bytes(space: SearchSpace) -> dict[int, int]:
    """Of all gradients of a step, by place; steps without any are left out."""
    params = {info.row: info for info in space.graph.params.values()}

    def within(value: int) -> int:
        if value in params:
            return _bytes(params[value]) if params[value].trainable else 0
        return sum(map(within, space.walk.alone[value][1])) if value in space.walk.alone else 0

    sizes = {
        place: sum(map(within, [step.row.id] if step.starts else step.statics))
        for place, step in enumerate(space.steps)
    }
    return {place: size for place, size in sizes.items() if size}


def _runs(sizes: Mapping[int, int], size: BucketSize) -> list[SumRun]:
    """Steps from the last on, as long as they are not too large together; one may be."""
    runs: list[list[int]] = []
    held = 0
    for place in sorted(sizes, reverse=True):
        limit = size.first if len(runs) == 1 else size.most
        if not runs or held + sizes[place] > limit:
            runs.append([])
            held = 0
        runs[-1].append(place)
        held += sizes[place]
    made = [SumRun(run[-1], run[0]) for run in reversed(runs)]
    return [made[0]._replace(first=0), *made[1:]]
