"""Bad values of what people write, each with its key path, told in one error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import HspmdError
from .limits import LARGEST


@dataclass(frozen=True, slots=True)
class Problem:
    """One bad value: where it stands, and what it is with the rule that it breaks."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class ProblemSubject:
    """What is read, such as `a cluster`; the error that its bad values raise; how to mend them.

    shown: bad values that the error lists, of something that may have very many.
    """

    name: str
    error: type[HspmdError]
    fix: str = ""
    shown: int = LARGEST

    def refuse(self, problems: Sequence[Problem], at: str = "") -> None:
        """Raise one error with a line per problem; none: return. at: where the values come from."""
        if problems:
            count = "one value breaks a rule" if len(problems) == 1 else f"{len(problems)} values break rules"
            told = in_reading_order(problems)
            details = [(problem.path, problem.text) for problem in told[: self.shown]]
            details += [("...", f"{len(told) - self.shown:,} more")] if len(told) > self.shown else []
            raise self.error(f"{count} of {self.name}", at=at, details=details, fix=self.fix)


def in_reading_order(problems: Iterable[Problem]) -> list[Problem]:
    """Sorted by path, so that what belongs together stands together, `[2]` before `[10]`."""
    return sorted(problems, key=_reading_order)


def _reading_order(problem: Problem) -> list[tuple[int, str]]:
    return [
        (int(part[:18]), "") if part.isdecimal() else (-1, part)
        for part in re.split(r"([0-9]+)", problem.path)
    ]
