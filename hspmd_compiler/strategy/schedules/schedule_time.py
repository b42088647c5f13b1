"""A pipeline schedule over time: when each action runs, where stages idle, and where they deadlock."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...base.pipeline_schedule import Action, ActionKind, PipelineSchedule

FORWARD_COST = 1
BACKWARD_COST = 2
"""Of it all; half of it, rounded down, where gradients of weights are left to later, which take the rest."""
IDLE = "."
GOES_ON = "-"

StageAction = tuple[int, Action]


@dataclass(slots=True)
class ScheduleTimes:
    """(start, end) of every action that can run. `done` counts, per stage, those that can."""

    schedule: PipelineSchedule
    spans: dict[StageAction, tuple[int, int]] = field(default_factory=dict)
    done: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """The time at which the last action ends."""
        return max((end for _, end in self.spans.values()), default=0)

    @property
    def bubble_fraction(self) -> float:
        """The share of all stages' time in which they idle."""
        busy = sum(end - start for start, end in self.spans.values())
        return 1 - busy / (self.length * self.schedule.num_stages) if self.spans else 0.0

    @property
    def blocked(self) -> list[StageAction]:
        """The first action of each stage that never runs."""
        rows = zip(self.schedule.stages, self.done, strict=True)
        return [(stage, row[done]) for stage, (row, done) in enumerate(rows) if done < len(row)]


def waits_for(schedule: PipelineSchedule, stage: int, action: Action) -> StageAction | None:
    """What an action needs beside its stage being free: None for the first stage's forward."""
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
    """Run every stage's actions in order, each as soon as what it waits for is there.

    Transfers take no time, and a sender doesn't wait for its receiver. Deadlocked stages stop:
    see `blocked`.
    """
    stages = range(schedule.num_stages)
    costs = [_costs(schedule.splits(stage), forward_cost, backward_cost) for stage in stages]
    timeline = ScheduleTimes(schedule, done=[0] * schedule.num_stages)
    free = [0] * schedule.num_stages
    progress = True
    while progress:
        progress = False
        for stage, row in enumerate(schedule.stages):
            for action in row[timeline.done[stage] :]:
                needed = waits_for(schedule, stage, action)
                if needed is not None and needed not in timeline.spans:
                    break
                ready = 0 if needed is None else timeline.spans[needed][1]
                start = max(free[stage], ready)
                free[stage] = start + costs[stage][action.kind]
                timeline.spans[stage, action] = (start, free[stage])
                timeline.done[stage] += 1
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

    `F0` is micro-batch 0 forward, `-` an action that goes on, `.` an idle stage.
    """
    timeline = simulate(schedule, forward_cost, backward_cost)
    rows = [["time", *map(str, range(timeline.length))]]
    for stage, row in enumerate(schedule.stages):
        rows.append([f"stage {stage}", *_cells(timeline, stage, row)])
    first = max(len(row[0]) for row in rows)
    width = max((len(cell) for row in rows for cell in row[1:]), default=1)
    lines = [
        " ".join([row[0].ljust(first), *(cell.ljust(width) for cell in row[1:])]).rstrip() for row in rows
    ]
    return (
        "\n".join([*lines, f"bubble {timeline.bubble_fraction:.1%} of {timeline.length} time units"]) + "\n"
    )


def _cells(timeline: ScheduleTimes, stage: int, row: tuple[Action, ...]) -> list[str]:
    """One stage's cells, one per unit of time."""
    cells = [IDLE] * timeline.length
    for action in row[: timeline.done[stage]]:
        start, end = timeline.spans[stage, action]
        cells[start:end] = [GOES_ON] * (end - start)
        if end > start:
            cells[start] = f"{action.kind.value}{action.micro_batch}"
    return cells
