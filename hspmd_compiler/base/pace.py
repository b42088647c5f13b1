"""A pace: how long instructions take at least, so that equal ranks stand for unequal devices. Files of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from ..errors import OptionError
from .bad_values import Problem, ProblemSubject
from .forms import VERSION, Version, problems_of
from .json_yaml import read_file, write_text
from .typed import Misfits, Wanted, read

LONGEST_S = 3600.0
"""Of one instruction: longer than that, others would take the rank for dead."""
NATURAL = re.compile("0|[1-9][0-9]{0,8}")
PACE = ProblemSubject("a pace", OptionError, "`hspmd estimate DIR --cluster C --pace-out FILE` writes one")
Seconds = Annotated[float, Wanted("a number of seconds")]


@dataclass(frozen=True, slots=True)
class Pace:
    """least_s: per rank the seconds that an instruction takes at least, by its position in the rank's list.

    Waiting for other ranks doesn't count. Ranks and instructions that are not named go as fast as they can.
    """

    least_s: Mapping[int, Mapping[int, float]]

    def of(self, rank: int) -> Mapping[int, float]:
        """What one rank keeps to."""
        return self.least_s.get(rank, {})


@dataclass(frozen=True, slots=True)
class PaceForm:
    """The keys of a pace file."""

    version: Version = VERSION
    ranks: dict[str, dict[str, Seconds]] = field(kw_only=True)


def write_pace(pace: Pace, path: Path) -> None:
    """Write a file that reads back as an equal pace."""
    ranks = {
        str(rank): {str(at): round(s, 9) for at, s in least.items()} for rank, least in pace.least_s.items()
    }
    write_text(path, json.dumps({"version": VERSION, "ranks": ranks}, indent=1) + "\n", OptionError)


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


def _problems(rank: str, least: Mapping[str, float]) -> Iterator[Problem]:
    for path, key in ((f"ranks.{rank}", rank), *((f"ranks.{rank}.{at}", at) for at in least)):
        if not NATURAL.fullmatch(key):
            yield Problem(path, f"{key[:80]!r} as a key: a whole number of 0 or more")
    for position, seconds in least.items():
        if not 0 <= seconds <= LONGEST_S:
            rule = f"{seconds:g}: seconds of 0 or more, at most {LONGEST_S:.0f}"
            yield Problem(f"ranks.{rank}.{position}", rule)
