"""Some steps of a run timed on every rank, and the timeline of the one of median length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ...base.pace import Pace, Stretches
from ...base.timeline import Timeline
from ...base.trace_file import write_trace
from ..engine import Engine
from .clocks import clock_offset
from .measured import RankRecord, merged, rank_record
from .step_timer import StepTimer

WARM_UP = 2
"""Steps before the first that is timed: memory is taken and moments are made in them."""


@dataclass(frozen=True, slots=True)
class TimedSteps:
    """Which steps of a run are timed, counted from 0."""

    first: int
    count: int

    @classmethod
    def of_run(cls, steps: int | None, count: int) -> TimedSteps:
        """The first ones after the warm-up, or the last ones of a short run."""
        return cls(WARM_UP if steps is None else max(0, min(WARM_UP, steps - count)), count)

    def holds(self, step: int) -> bool:
        """Whether a step is timed."""
        return self.first <= step < self.first + self.count


class Untraced:
    """No step is timed."""

    def step_done(self) -> None:
        """A step is over."""

    def timeline(self) -> Timeline | None:
        """The timeline of all ranks, at rank 0, if a step was timed; every rank asks."""
        return None

    def write(self) -> None:
        """Write the timeline, where one is wanted; every rank calls this."""


class Tracing(Untraced):
    """Times steps of one rank; every rank has one and tells it of each step.

    least_s: of a pace. path: where rank 0 writes the timeline.
    """

    def __init__(
        self, engine: Engine, steps: TimedSteps, least_s: Mapping[int, Stretches], path: Path | None = None
    ) -> None:
        self._engine = engine
        self._steps = steps
        self._path = path
        self._taken = 0
        self._records: list[RankRecord] = []
        self._timer = StepTimer(engine.transport.device, least_s, records=steps.holds(0))
        engine.timing = self._timer
        with engine.transport.call("trace"):
            self._offset_s = clock_offset(engine.transport)

    def step_done(self) -> None:
        """See Untraced."""
        if self._timer.records:
            self._records.append(self._record())
        self._taken += 1
        self._timer.records = self._steps.holds(self._taken)

    def timeline(self) -> Timeline | None:
        """See Untraced."""
        transport = self._engine.transport
        with transport.call("timeline"):
            gathered = cast(list[list[RankRecord]], transport.gather_objects(self._records))
        if transport.rank or not gathered[0]:
            return None
        return median_of([merged(list(of_step)) for of_step in zip(*gathered, strict=True)])

    def write(self) -> None:
        """See Untraced."""
        timeline = self.timeline()
        if timeline is not None and self._path is not None:
            write_trace(timeline, self._path)

    def _record(self) -> RankRecord:
        program, places = self._engine.rank_program, self._engine.places
        label = f"rank {program.rank}: pipeline {program.pipeline} stage {program.stage_text}"
        label += f" tp {program.coordinate}" + (f", {places[program.rank]}" if places else "")
        return rank_record(program, self._timer.parts, self._timer.memory, self._offset_s, label)


def timing_of(engine: Engine, pace: Pace, trace: Path | None, steps: int | None, traced: int) -> Untraced:
    """What a run's steps are timed by; every rank asks. trace: where the timeline goes, if one is wanted.

    steps: that the run takes, where it is known; traced: how many of them are timed.
    """
    least_s = pace.of(engine.rank)
    if trace is not None:
        return Tracing(engine, TimedSteps.of_run(steps, traced), least_s, trace)
    if least_s:
        engine.timing = StepTimer(engine.transport.device, least_s)
    return Untraced()


def median_of(timelines: Sequence[Timeline]) -> Timeline:
    """The one of median length; of two the longer."""
    return sorted(timelines, key=lambda timeline: timeline.end_s)[len(timelines) // 2]
