"""Typed values out of a published format, with a Problem for each that can't be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, TypeGuard, TypeVar

from ...base.bad_values import Problem
from ...base.limits import MOST_COUNT, beyond
from ...base.typed import AtLeast, Called, Converted, Misfits, read

T = TypeVar("T")


def _few(count: int) -> int:
    if count > MOST_COUNT:
        raise ValueError(f"as a count at most {MOST_COUNT:,}")
    return count


def _counts(least: int) -> tuple[Any, Any]:
    """The type hints of a count of at least so many, and of a list of these."""
    count = Annotated[int, AtLeast(least), Called(f"an integer of at least {least}"), Converted(_few)]
    return count, Annotated[list[count], Called(f"a list of integers of at least {least}")]


KINDS = {least: _counts(least) for least in (0, 1)}


class FormatValues:
    """Collects problems. What can't be read is a problem, and empty or None in the answer.

    given: values by key, as `of` reads them.
    """

    def __init__(self, given: Mapping[str, object] | None = None) -> None:
        self.problems: list[Problem] = []
        self.given = given or {}

    def bad(self, path: str, text: str) -> None:
        self.problems.append(Problem(path, text))

    def broken(self, path: str) -> bool:
        """Whether something at or below this path was refused."""
        return any(
            problem.path == path or problem.path.startswith((f"{path}[", f"{path}."))
            for problem in self.problems
        )

    def of(self, key: str) -> object:
        """What is given for a key; None where there is nothing, or where it was refused."""
        return None if self.broken(key) else self.given.get(key)

    def read(self, path: str, kind: Any, value: object, otherwise: T, wanted: str = "") -> T:
        """A value by its type hint; wanted: what the whole of it is, in the format's words."""
        try:
            made: T = read(kind, value)
        except Misfits as error:
            for each in error.found:
                found = _at(value, each.place)
                shown = "missing" if found is None else repr(found)
                text = wanted if wanted and not each.place else each.wanted
                self.bad(f"{path}{'' if each.path[:1] in ('', '[') else '.'}{each.path}", f"{shown}: {text}")
            return otherwise
        return made

    def mapping(self, path: str, value: object) -> Mapping[str, object]:
        return self.read(path, dict[str, object], value, {})

    def count(self, path: str, value: object, least: int = 1) -> int | None:
        """An integer of at least `least`, None where there is none."""
        return None if value is None else self.read(path, KINDS[least][0], value, None)

    def required(self, path: str, value: object) -> int:
        """An integer of at least 1; 1 stands in for what can't be read."""
        if value is None and not self.broken(path):
            self.bad(path, "missing: this key is required")
        return self.count(path, value) or 1

    def counts(self, path: str, value: object, least: int = 1) -> list[int]:
        """A list of integers of at least `least`."""
        return self.read(path, KINDS[least][1], value, [])

    def count_lists(self, path: str, value: object, wanted: str, least: int = 1) -> list[list[int]]:
        """A list of such lists; wanted: what it is, in the format's words."""
        if not is_list(value) or not value:
            self.bad(path, f"{'missing' if value is None else repr(value)}: {wanted}")
            return []
        return self.read(path, list[KINDS[least][1]], value, [])  # type: ignore[misc]

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


def _at(value: Any, place: Sequence[str | int]) -> object:
    """The part at a place, as it was written; keys may be no texts."""
    for part in place:
        value = value[part] if not isinstance(value, Mapping) or part in value else None
    found: object = value
    return found
