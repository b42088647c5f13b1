"""Pipeline schedules written by hand, read from text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...base.pipeline_schedule import Action, ActionKind, PipelineSchedule
from .schedule_check import ScheduleProblem

WORD = re.compile(r"([0-9]{1,9})([FBW])([0-9]{1,9})")


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
            problems.append((f"stage {stage}", f"{word!r}: an action is stage, F, B or W, micro-batch: 0F0"))
        elif int(found[1]) != stage:
            problems.append((f"stage {stage}", f"{word!r}: the line of stage {stage} holds its actions only"))
        else:
            yield Action(ActionKind(found[2]), int(found[3]))
