"""A pace: how long ranks compute at least, so that equal ranks stand for unequal devices. Files of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

from ..errors import OptionError
from .bad_values import Problem, ProblemSubject
from .forms import VERSION, Version, problems_of
from .json_yaml import read_file, write_text
from .typed import Converted, Either, Misfits, Wanted, read

LONGEST_S = 3600.0
"""Of one instruction: longer than that, others would take the rank for dead."""
NATURAL = re.compile("0|[1-9][0-9]{0,8}")
PACE = ProblemSubject("a pace", OptionError, "`hspmd estimate DIR --cluster C --pace-out FILE` writes one")
Stretches: TypeAlias = tuple[float, ...]
"""Seconds of an instruction: before, between and behind its exchanges. The last is of all that is left."""


def _stretches(value: float | Stretches) -> Stretches:
    if value == ():
        raise ValueError("at least one number of seconds")
    return value if isinstance(value, tuple) else (value,)


Entry: TypeAlias = Annotated[
    Stretches,
    Either((list,), tuple[float, ...], float),
    Wanted("a number of seconds, or a list of them"),
    Converted(_stretches),
]


@dataclass(frozen=True, slots=True)
class Pace:
    """least_s: per rank what an instruction computes at least, by its position in the rank's list.

    So a slow device is late where it meets others, not behind that. Waiting for other ranks doesn't count.
    Ranks and instructions that are not named go as fast as they can.
    """

    least_s: Mapping[int, Mapping[int, Stretches]]

    def of(self, rank: int) -> Mapping[int, Stretches]:
        """What one rank keeps to."""
        return self.least_s.get(rank, {})


@dataclass(frozen=True, slots=True)
class PaceForm:
    """The keys of a pace file."""

    version: Version = VERSION
    ranks: dict[str, dict[str, Entry]] = field(kw_only=True)


def write_pace(pace: Pace, path: Path) -> None:
    """Write a file that reads back as an equal pace."""
    ranks = {
        str(rank): {str(at): _entry(stretches) for at, stretches in least.items()}
        for rank, least in pace.least_s.items()
    }
    write_text(path, json.dumps({"version": VERSION, "ranks": ranks}, indent=1) + "\n", OptionError)


def _entry(stretches: Stretches) -> float | list[float]:
    found = [round(seconds, 9) for seconds in stretches]
    return found if len(found) > 1 else found[0]


def read_pace(path: Path) -> Pace:
    """The pace of a file; one error lists every bad value."""
    at = str(path)
    content = read_file(path, PACE, "the pace")
    try:
        form = read(PaceForm, content)
    except Misfits as error:
        PACE.refuse(problems_of(error, "pace"), at)
        raise
    PACE.refuse([each for rank, least in form.ranks.items() for each in _problems(rank, least)], at)
    return Pace({int(rank): {int(key): s for key, s in of.items()} for rank, of in form.ranks.items()})


def check_pace(pace: Pace, world_size: int, rank: int, instructions: int, at: str = "") -> None:
    """Raise one error for ranks that a program doesn't have, and for instructions that one rank hasn't."""
    found = [
        Problem(f"ranks.{other}", f"the program has ranks 0 to {world_size - 1}")
        for other in pace.least_s
        if other >= world_size
    ]
    found += [
        Problem(f"ranks.{rank}.{position}", f"the rank has instructions 0 to {instructions - 1}")
        for position in pace.of(rank)
        if position >= instructions
    ]
    PACE.refuse(found, at)


def _problems(rank: str, least: Mapping[str, Stretches]) -> Iterator[Problem]:
    for path, key in ((f"ranks.{rank}", rank), *((f"ranks.{rank}.{at}", at) for at in least)):
        if not NATURAL.fullmatch(key):
            yield Problem(path, f"{key[:80]!r} as a key: a whole number of 0 or more")
    for position, stretches in least.items():
        wrong = [seconds for seconds in (*stretches, sum(stretches)) if not 0 <= seconds <= LONGEST_S]
        for seconds in wrong[:1]:
            rule = f"{seconds:g}: seconds of 0 or more, at most {LONGEST_S:.0f}"
            yield Problem(f"ranks.{rank}.{position}", rule)
