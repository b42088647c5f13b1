"""The order of devices that run several stages of a pipeline: interleaved 1F1B, or a V, as the stages lie.

Variables: what each set of devices runs next. Objective: the length of the schedule, a forward of any stage
taking 1 and a backward 2; of equally short ones, what the devices with the most keep. Constraints: forwards,
and backwards, of a stage in the order of micro-batches. Bound: the best of some greedy choices, and of
forward and backward in turns behind so many forwards, which is interleaved 1F1B as published; for many
micro-batches of those that are best for few.

Greedy choices always get on: of the earliest micro-batch that is not through, no stage keeps one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import accumulate
from math import inf

from ...base.pipeline_schedule import (
    Action,
    ActionKind,
    Lanes,
    PipelineSchedule,
    ScheduleKind,
    StageAction,
    of_lanes,
)
from .schedule_time import BACKWARD_COST, FORWARD_COST, simulate

TRIED = 4
"""So many micro-batches per set of devices are few enough to try all ways with."""
LANE_KINDS = (ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.AUTO)
"""The named schedules that devices in several stages may have."""


@dataclass(frozen=True, slots=True)
class GreedyRule:
    """How a greedy walk chooses. A stage keeps no more micro-batches than come until its first one is back,
    and `spare` more. deepest: of what could go forward the latest stage, else the first of as many
    micro-batches as there are sets of devices. forwards_first: no backward before all forwards.
    """

    spare: int
    deepest: bool = False
    forwards_first: bool = False


ScheduleWay = Callable[[int], PipelineSchedule]
"""A schedule of so many micro-batches."""


@cache
def interleave(kind: ScheduleKind, lanes: Lanes, micro_batches: int) -> PipelineSchedule:
    """The named schedule of devices that run these stages."""
    if kind is ScheduleKind.GPIPE:
        return greedy(lanes, GreedyRule(micro_batches, forwards_first=True), micro_batches)
    few, devices = micro_batches, len(lanes)
    if micro_batches > TRIED * devices:
        few = (TRIED - 1) * devices + micro_batches % devices
    ways = sorted(_ways(lanes), key=lambda way: _badness(way(few)))
    made = (way(micro_batches) for way in ways)
    return next(schedule for schedule in made if not simulate(schedule).blocked)


def _badness(made: PipelineSchedule) -> tuple[float, int]:
    times = simulate(made)
    return (inf if times.blocked else times.length), most_held(made)


def _ways(lanes: Lanes) -> Iterator[ScheduleWay]:
    for spare in range(len(lanes) + 1):
        for deepest in (False, True):
            yield partial(greedy, lanes, GreedyRule(spare, deepest))
    for ahead in range(2 * sum(map(len, lanes)) + 1):
        yield partial(in_lane_turns, lanes, ahead)


def most_held(schedule: PipelineSchedule) -> int:
    """Micro-batches of stages that the devices with the most keep at once."""
    found = 0
    for row in schedule.rows:
        steps = [1 if action.kind is ActionKind.FORWARD else -1 for _, action in row]
        found = max(found, *accumulate(steps, initial=0))
    return found


def in_lane_turns(lanes: Lanes, ahead: int, micro_batches: int) -> PipelineSchedule:
    """Forwards and backwards in turns behind `ahead` forwards more, two less on each later set of devices;
    both in groups of as many micro-batches as there are sets of devices, stage after stage."""
    rows = []
    for place, lane in enumerate(lanes):
        each = [(mb // len(lanes), stage, mb) for stage in lane for mb in range(micro_batches)]
        forwards = [(stage, Action(ActionKind.FORWARD, mb)) for _, stage, mb in sorted(each)]
        back = sorted((group, -stage, mb) for group, stage, mb in each)
        backwards = [(-stage, Action(ActionKind.BACKWARD, mb)) for _, stage, mb in back]
        first = min(max(ahead - 2 * place, 0), len(forwards))
        turns = zip(forwards[first:], backwards, strict=False)
        rows.append(
            [
                *forwards[:first],
                *(action for pair in turns for action in pair),
                *backwards[len(forwards) - first :],
            ]
        )
    return of_lanes(rows, sum(map(len, lanes)))


def greedy(lanes: Lanes, rule: GreedyRule, micro_batches: int) -> PipelineSchedule:
    """What devices run that choose by a rule whenever they are free."""
    stages = sum(map(len, lanes))
    walk = _GreedyWalk(lanes, micro_batches, rule, [[0, 0] for _ in range(stages)], [0] * stages)
    for lane in lanes:
        for stage in lane:
            walk.most[stage] = -(-(stages - stage) // len(lane)) + rule.spare
    return of_lanes(walk.run(), stages)


@dataclass(slots=True)
class _GreedyWalk:
    """done: of each stage, forwards and backwards that were begun. most: that each stage keeps."""

    lanes: Lanes
    count: int
    rule: GreedyRule
    done: list[list[int]]
    most: list[int]
    ends: dict[StageAction, int] = field(default_factory=dict)

    def run(self) -> list[list[StageAction]]:
        """What each set of devices runs, in order."""
        rows: list[list[StageAction]] = [[] for _ in self.lanes]
        free = [0] * len(self.lanes)
        left = 2 * self.count * len(self.done)
        now = 0
        while left:
            for lane, stages in enumerate(self.lanes):
                if free[lane] > now:
                    continue
                ready = sorted(self._ready(stages, now))
                if ready:
                    *_, stage, action = ready[0]
                    cost = FORWARD_COST if action.kind is ActionKind.FORWARD else BACKWARD_COST
                    free[lane] = self.ends[stage, action] = now + cost
                    self.done[stage][action.kind is ActionKind.BACKWARD] += 1
                    rows[lane].append((stage, action))
                    left -= 1
            now = min((end for end in free if end > now), default=now + 1)
        return rows

    def _ready(self, stages: tuple[int, ...], now: int) -> Iterator[tuple[int, int, int, int, Action]]:
        """What could run, by rank: groups of as many micro-batches as devices go through a stage at once."""
        group = len(self.lanes)
        forwards_left = any(self.done[stage][0] < self.count for stage in stages)
        for stage in stages:
            forwards, backwards = self.done[stage]
            forward = Action(ActionKind.FORWARD, forwards)
            may_keep = self.rule.forwards_first or forwards - backwards < self.most[stage]
            arrived = stage == 0 or self.ends.get((stage - 1, forward), now + 1) <= now
            if forwards < self.count and may_keep and arrived:
                deep = (-stage, 0) if self.rule.deepest else (forwards // group, stage)
                yield 1, *deep, stage, forward
            if backwards < forwards and not (self.rule.forwards_first and forwards_left):
                backward = Action(ActionKind.BACKWARD, backwards)
                last = stage + 1 == len(self.done)
                needed = (stage, Action(ActionKind.FORWARD, backwards)) if last else (stage + 1, backward)
                if self.ends.get(needed, now + 1) <= now:
                    yield 0, backwards // group, -stage, stage, backward
