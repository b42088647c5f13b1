"""Pipeline schedules written by hand: read from text, and held to the rules that every one keeps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ..errors import StrategyError
from .schedule import Action, ActionKind, PipelineSchedule
from .schedule_time import simulate, waits_for

WORD = re.compile(r"(\d+)([FB])(\d+)")

Problems = list[tuple[str, str]]


def parse_schedule(text: str) -> PipelineSchedule:
    """The schedule that a text holds, one line per stage; `#` begins a comment. Validated."""
    lines = [line.split("#")[0].split() for line in text.splitlines()]
    rows = [words for words in lines if words]
    problems: Problems = []
    stages = tuple(tuple(_read_row(stage, words, problems)) for stage, words in enumerate(rows))
    _refuse(problems, "can't be read", fix="write one line per stage, in order, as in 0F0 0F1 0B0 0B1")
    schedule = PipelineSchedule(stages)
    validate(schedule)
    return schedule


def validate(schedule: PipelineSchedule) -> None:
    """Raise one StrategyError with every misplaced action, else with the actions that deadlock."""
    rule = "every stage runs each micro-batch, from 0 on, forward once and later backward once"
    _refuse(list(_action_problems(schedule)), "breaks a rule", rule=rule)
    blocked = list(_blocked(schedule))
    rule = "a forward follows the same micro-batch's in the stage before, a backward in the stage behind"
    _refuse(blocked, "deadlocks", rule=rule, fix="reorder the actions of these stages")


def schedule_problems(schedule: PipelineSchedule) -> Problems:
    """Every misplaced action, else the actions that deadlock."""
    return list(_action_problems(schedule)) or list(_blocked(schedule))


def _blocked(schedule: PipelineSchedule) -> Iterator[tuple[str, str]]:
    for stage, action in simulate(schedule).blocked:
        yield f"stage {stage}", f"{action.text(stage)} waits for {_awaited(schedule, stage, action)}"


def _read_row(stage: int, words: Sequence[str], problems: Problems) -> Iterator[Action]:
    for word in words:
        found = WORD.fullmatch(word)
        if found is None:
            problems.append((f"stage {stage}", f"{word!r}: an action is stage, F or B, micro-batch"))
        elif int(found[1]) != stage:
            problems.append((f"stage {stage}", f"{word!r}: the line of stage {stage} holds its actions only"))
        else:
            yield Action(ActionKind(found[2]), int(found[3]))


def _action_problems(schedule: PipelineSchedule) -> Iterator[tuple[str, str]]:
    numbers = sorted({action.micro_batch for row in schedule.stages for action in row})
    if not numbers:
        yield "schedule", "empty: at least one stage and one micro-batch"
    if numbers != list(range(len(numbers))):
        yield "schedule", f"micro-batches {', '.join(map(str, numbers))}: numbered from 0 without a gap"
    for stage, row in enumerate(schedule.stages):
        counts = Counter(row)
        for micro_batch in numbers:
            forward = Action(ActionKind.FORWARD, micro_batch)
            backward = Action(ActionKind.BACKWARD, micro_batch)
            for action in (forward, backward):
                if counts[action] != 1:
                    times = f"stands {counts[action]} times" if counts[action] else "is missing"
                    yield f"stage {stage}", f"{action.text(stage)} {times}"
            if counts[forward] == counts[backward] == 1 and row.index(forward) > row.index(backward):
                yield f"stage {stage}", f"{backward.text(stage)} stands before {forward.text(stage)}"


def _awaited(schedule: PipelineSchedule, stage: int, action: Action) -> str:
    needed = waits_for(schedule, stage, action)
    return needed[1].text(needed[0]) if needed else "nothing"


def _refuse(problems: Problems, what: str, *, rule: str = "", fix: str = "") -> None:
    if problems:
        raise StrategyError(f"the pipeline schedule {what}", details=problems, rule=rule, fix=fix)
