"""Bad values of an annotation, collected so that one error names them all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import AnnotationError


@dataclass(frozen=True, slots=True)
class AnnotationProblem:
    """One bad value: what it is, the rule it breaks, how to mend it."""

    what: str
    rule: str
    fix: str

    def within(self, place: str) -> AnnotationProblem:
        """The same problem, saying where it is."""
        return AnnotationProblem(f"{place}: {self.what}", self.rule, self.fix)


def refuse(problems: Iterable[AnnotationProblem], subject: str) -> None:
    """Raises one AnnotationError for all problems; returns if there are none."""
    found = tuple(dict.fromkeys(problems))
    if len(found) == 1:
        raise AnnotationError(found[0].what, details=[("in", subject)], rule=found[0].rule, fix=found[0].fix)
    if found:
        rows = [row for problem in found for row in _rows(problem)]
        raise AnnotationError(f"{len(found)} bad values in {subject}", details=rows)


def _rows(problem: AnnotationProblem) -> tuple[tuple[str, str], ...]:
    return ("bad", problem.what), ("rule", problem.rule), ("fix", problem.fix)
