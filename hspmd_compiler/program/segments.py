"""Running a rank's segments on tensors: compiled, or row by row under an observer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .codegen import SegmentCache
from .execute import RankPlan
from .interpret import RowCall, interpreted
from .program import LocalRow
from .requests import SegmentRun


class CompiledSegments:
    """`Segments` of one rank as generated functions. cache: shared by all ranks of a process."""

    def __init__(self, plan: RankPlan, cache: SegmentCache) -> None:
        literals = plan.program.literals
        self._functions = [cache.get(segment, literals) for segment in plan.shared.segments]

    def start(self, segment: int, mb: int, inputs: list[Tensor], owned: list[bool]) -> SegmentRun[Tensor]:
        """See Segments."""
        return self._functions[segment](*inputs)


@dataclass(frozen=True, slots=True)
class Observation:
    """One value that a rank computed."""

    rank: int
    segment: int
    mb: int
    row: LocalRow
    result: Any


Observer = Callable[[Observation], None]


class ObservedSegments:
    """`Segments` of one rank, each value shown to `observe`."""

    def __init__(self, plan: RankPlan, observe: Observer, device: str = "cpu") -> None:
        self._plan = plan
        self._observe = observe
        self._device = device

    def start(self, segment: int, mb: int, inputs: list[Tensor], owned: list[bool]) -> SegmentRun[Tensor]:
        """See Segments."""
        rank = self._plan.program.rank

        def seen(call: RowCall, result: Any) -> None:
            self._observe(Observation(rank, segment, mb, call.row, result))

        rows = self._plan.shared.segments[segment]
        return interpreted(rows, self._plan.program.literals, inputs, self._device, seen)
