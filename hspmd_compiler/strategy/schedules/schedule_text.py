"""Pipeline schedules written by hand: read from text, and held to the rules that every one keeps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .schedule import Action, ActionKind, PipelineSchedule
from .schedule_time import simulate, waits_for

WORD = re.compile(r"([0-9]{1,9})([FB])([0-9]{1,9})")

ScheduleProblem = tuple[str, str]
"""A stage, and what is wrong there."""


def read_schedule(text: str) -> tuple[PipelineSchedule, list[ScheduleProblem]]:
    """The schedule that a text holds, one line per stage, and what can't be read; `#` begins a comment."""
    lines = [line.split("#")[0].split() for line in text.splitlines()]
    rows = [words for words in lines if words]
    problems: list[ScheduleProblem] = []
    stages = tuple(tuple(_read_row(stage, words, problems)) for stage, words in enumerate(rows))
    return PipelineSchedule(stages), problems


def _read_row(stage: int, words: Sequence[str], problems: list[ScheduleProblem]) -> Iterator[Action]:
    for word in words:
        found = WORD.fullmatch(word)
        if found is None:
            problems.append((f"stage {stage}", f"{word!r}: an action is stage, F or B, micro-batch: 0F0"))
        elif int(found[1]) != stage:
            problems.append((f"stage {stage}", f"{word!r}: the line of stage {stage} holds its actions only"))
        else:
            yield Action(ActionKind(found[2]), int(found[3]))


def schedule_problems(schedule: PipelineSchedule, micro_batches: int) -> list[ScheduleProblem]:
    """Every misplaced action, else the actions that wait for each other for ever."""
    found = [
        (f"stage {stage}", text)
        for stage, row in enumerate(schedule.stages)
        for text in _problems_of_row(stage, row, micro_batches)
    ]
    return found or list(_blocked(schedule))


def _problems_of_row(stage: int, row: Sequence[Action], count: int) -> Iterator[str]:
    """Every micro-batch once forward and later once backward, both in their order."""
    for kind in ActionKind:
        numbers = [action.micro_batch for action in row if action.kind is kind]
        held = {*numbers}
        for number in sorted({*range(count), *held}):
            if number >= count:
                yield f"{Action(kind, number).text(stage)}: there are {count} micro-batches"
            elif number not in held:
                yield f"{Action(kind, number).text(stage)} is missing"
        if held == {*range(count)} and numbers != list(range(count)):
            yield f"{kind.name.lower()} runs {' '.join(map(str, numbers))}: each micro-batch once, from 0 on"
    seen: set[int] = set()
    for action in row:
        if action.kind is ActionKind.FORWARD:
            seen.add(action.micro_batch)
        elif action.micro_batch < count and action.micro_batch not in seen:
            yield f"{action.text(stage)} stands before its forward"


def _blocked(schedule: PipelineSchedule) -> Iterator[ScheduleProblem]:
    for stage, action in simulate(schedule).blocked:
        needed = waits_for(schedule, stage, action)
        if needed is not None:
            yield f"stage {stage}", f"{action.text(stage)} waits for ever for {needed[1].text(needed[0])}"
