"""Typed values out of a published format, with a Problem for each that can't be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TypeGuard

from ..bad_values import Problem
from ..limits import MOST_COUNT, beyond


class FormatValues:
    """Collects problems. What can't be read is a problem, and empty or None in the answer."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def bad(self, path: str, text: str) -> None:
        self.problems.append(Problem(path, text))

    def broken(self, path: str) -> bool:
        """Whether something at or below this path was refused."""
        return any(
            problem.path == path or problem.path.startswith((f"{path}[", f"{path}."))
            for problem in self.problems
        )

    def mapping(self, path: str, value: object) -> Mapping[str, object]:
        if isinstance(value, Mapping):
            return value
        self.bad(path, f"{value!r}: an object of keys and values")
        return {}

    def count(self, path: str, value: object, least: int = 1) -> int | None:
        """An integer of at least `least`, None where there is none."""
        if value is None:
            return None
        if is_integer(value) and value > MOST_COUNT:
            self.bad(path, beyond("as a count", value, MOST_COUNT))
            return None
        if is_integer(value) and value >= least:
            return value
        self.bad(path, f"{value!r}: an integer of at least {least}")
        return None

    def required(self, path: str, value: object) -> int:
        """An integer of at least 1; 1 stands in for what can't be read."""
        if value is None:
            self.bad(path, "missing: this key is required")
        return self.count(path, value) or 1

    def counts(self, path: str, value: object, least: int = 1) -> list[int]:
        """A list of integers of at least `least`."""
        if not is_list(value):
            self.bad(path, f"{_shown(value)}: a list of integers of at least {least}")
            return []
        numbers = [self.count(f"{path}[{index}]", item, least) for index, item in enumerate(value)]
        for index, item in enumerate(value):
            if item is None:
                self.bad(f"{path}[{index}]", f"None: an integer of at least {least}")
        return [number for number in numbers if number is not None] if None not in numbers else []

    def count_lists(self, path: str, value: object, wanted: str, least: int = 1) -> list[list[int]]:
        """A list of such lists; wanted: what it is, in the format's words."""
        if not is_list(value) or not value:
            self.bad(path, f"{_shown(value)}: {wanted}")
            return []
        lists = [self.counts(f"{path}[{index}]", item, least) for index, item in enumerate(value)]
        return [] if self.broken(path) else lists

    def within(self, path: str, what: str, count: int, most: int) -> bool:
        """Whether a count that others multiply to is small enough; a problem where it isn't."""
        rule = beyond(what, count, most)
        if rule:
            self.bad(path, rule)
        return not rule

    def unknown(self, path: str, known: Sequence[str]) -> bool:
        """A key that is no format's; a problem where it looks like a known one, misspelt."""
        near = get_close_matches(path, known, n=1, cutoff=0.85)
        if near:
            self.bad(path, f"unknown key, did you mean {near[0]}?")
        return not near


def is_integer(value: object) -> TypeGuard[int]:
    """Whether it is a whole number, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_list(value: object) -> TypeGuard[Sequence[object]]:
    """Whether it is a list or a tuple, and no text."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)
