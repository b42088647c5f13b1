"""A pipeline schedule over time: when each action runs, where stages idle, and where they deadlock."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...base.pipeline_schedule import Action, ActionKind, PipelineSchedule, StageAction

FORWARD_COST = 1
BACKWARD_COST = 2
"""Of it all; half of it, rounded down, where gradients of weights are left to later, which take the rest."""
IDLE = "."
GOES_ON = "-"


@dataclass(slots=True)
class ScheduleTimes:
    """(start, end) of every action that can run. `done` counts, per set of devices, those that can."""

    schedule: PipelineSchedule
    spans: dict[StageAction, tuple[int, int]] = field(default_factory=dict)
    done: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """The time at which the last action ends."""
        return max((end for _, end in self.spans.values()), default=0)

    @property
    def bubble_fraction(self) -> float:
        """The share of all devices' time in which they idle."""
        busy = sum(end - start for start, end in self.spans.values())
        return 1 - busy / (self.length * len(self.done)) if self.spans else 0.0

    @property
    def blocked(self) -> list[StageAction]:
        """The first action of each set of devices that never runs."""
        rows = zip(self.schedule.rows, self.done, strict=True)
        return [row[done] for row, done in rows if done < len(row)]


def waits_for(schedule: PipelineSchedule, stage: int, action: Action) -> StageAction | None:
    """What an action needs beside its devices being free: None for the first stage's forward."""
    if action.kind is ActionKind.FORWARD:
        return (stage - 1, action) if stage else None
    if action.kind is ActionKind.WEIGHTS:
        return stage, Action(ActionKind.BACKWARD, action.micro_batch)
    if stage + 1 < schedule.num_stages:
        return stage + 1, action
    return stage, Action(ActionKind.FORWARD, action.micro_batch)


def simulate(
    schedule: PipelineSchedule, forward_cost: int = FORWARD_COST, backward_cost: int = BACKWARD_COST
) -> ScheduleTimes:
    """Run the actions of all devices in order, each as soon as what it waits for is there.

    Transfers take no time, and a sender doesn't wait for its receiver. Deadlocked devices stop:
    see `blocked`.
    """
    stages, rows = range(schedule.num_stages), schedule.rows
    costs = [_costs(schedule.splits(stage), forward_cost, backward_cost) for stage in stages]
    timeline = ScheduleTimes(schedule, done=[0] * len(rows))
    free = [0] * len(rows)
    progress = True
    while progress:
        progress = False
        for lane, row in enumerate(rows):
            for stage, action in row[timeline.done[lane] :]:
                needed = waits_for(schedule, stage, action)
                if needed is not None and needed not in timeline.spans:
                    break
                ready = 0 if needed is None else timeline.spans[needed][1]
                start = max(free[lane], ready)
                free[lane] = start + costs[stage][action.kind]
                timeline.spans[stage, action] = (start, free[lane])
                timeline.done[lane] += 1
                progress = True
    return timeline


def _costs(splits: bool, forward: int, backward: int) -> dict[ActionKind, int]:
    first = backward // 2 if splits else backward
    return {
        ActionKind.FORWARD: forward,
        ActionKind.BACKWARD: first,
        ActionKind.WEIGHTS: backward - first,
    }


def grid(
    schedule: PipelineSchedule, forward_cost: int = FORWARD_COST, backward_cost: int = BACKWARD_COST
) -> str:
    """The schedule over time: a row per stage, a column per unit of time, then the bubble's share.

    `F0` is micro-batch 0 forward, `-` an action that goes on, `.` an idle stage. Stages of the same devices
    have one row, in which `2F0` tells the stage.
    """
    timeline = simulate(schedule, forward_cost, backward_cost)
    rows = [["time", *map(str, range(timeline.length))]]
    for lane, row in enumerate(schedule.rows):
        stages = sorted({stage for stage, _ in row}) or [lane]
        name = f"stage {stages[0]}" if len(stages) == 1 else f"stages {' '.join(map(str, stages))}"
        rows.append([name, *_cells(timeline, row[: timeline.done[lane]], len(stages) > 1)])
    first = max(len(row[0]) for row in rows)
    width = max((len(cell) for row in rows for cell in row[1:]), default=1)
    lines = [
        " ".join([row[0].ljust(first), *(cell.ljust(width) for cell in row[1:])]).rstrip() for row in rows
    ]
    return (
        "\n".join([*lines, f"bubble {timeline.bubble_fraction:.1%} of {timeline.length} time units"]) + "\n"
    )


def _cells(timeline: ScheduleTimes, row: tuple[StageAction, ...], tells_stage: bool) -> list[str]:
    """What the same devices do, one cell per unit of time."""
    cells = [IDLE] * timeline.length
    for stage, action in row:
        start, end = timeline.spans[stage, action]
        cells[start:end] = [GOES_ON] * (end - start)
        if end > start:
            text = action.text(stage)
            cells[start] = text if tells_stage else text.removeprefix(str(stage))
    return cells
