"""Pipeline schedules written by hand, read from text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...base.pipeline_schedule import Action, ActionKind, Lanes, PipelineSchedule, StageAction, of_lanes
from .schedule_check import ScheduleProblem

WORD = re.compile(r"([0-9]{1,9})([FBW])([0-9]{1,9})")


def read_schedule(text: str, lanes: Lanes | None = None) -> tuple[PipelineSchedule, list[ScheduleProblem]]:
    """The schedule that a text holds, one line per stage, and what can't be read; `#` begins a comment.

    lanes: the stages of each set of devices, where some run several: these have one line.
    """
    lines = [line.split("#")[0].split() for line in text.splitlines()]
    rows = [words for words in lines if words]
    problems: list[ScheduleProblem] = []
    if lanes is None:
        alone = (tuple(_read_row((stage,), words, problems)) for stage, words in enumerate(rows))
        return PipelineSchedule(tuple(tuple(action for _, action in row) for row in alone)), problems
    if len(rows) != len(lanes):
        problems.append(("devices", f"{len(rows)} lines: one for each of {len(lanes)} sets of devices"))
    read = [tuple(_read_row(lane, words, problems)) for lane, words in zip(lanes, rows, strict=False)]
    return of_lanes(read, sum(map(len, lanes))), problems


def _read_row(
    stages: Sequence[int], words: Sequence[str], problems: list[ScheduleProblem]
) -> Iterator[StageAction]:
    name = f"stage{'s' * (len(stages) > 1)} {' and '.join(map(str, stages))}"
    for word in words:
        found = WORD.fullmatch(word)
        if found is None:
            problems.append((name, f"{word!r}: an action is stage, F, B or W, micro-batch: 0F0"))
        elif int(found[1]) not in stages:
            its = "their" if len(stages) > 1 else "its"
            problems.append((name, f"{word!r}: the line of {name} holds {its} actions only"))
        else:
            yield int(found[1]), Action(ActionKind(found[2]), int(found[3]))
