"""Typed values out of a JSON or YAML form, with a Problem for each that can't be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from typing import TypeGuard, TypeVar

from .bad_values import Problem
from .limits import MOST_DEVICES, beyond

Made = TypeVar("Made")
Choice = TypeVar("Choice", bound=Enum)


class FormValues:
    """Reads a form as far as it can. What can't be read is a Problem, and a stand-in in the result.

    subject: the name of the whole form in a problem. unread: the paths that have a stand-in.
    """

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.problems: list[Problem] = []
        self.unread: set[str] = set()

    def items(self, path: str, form: object, read: Callable[[str, object], Made]) -> tuple[Made, ...]:
        return tuple(read(f"{path}[{index}]", item) for index, item in enumerate(self.sequence(path, form)))

    def mapping(
        self, path: str, form: object, known: Collection[str], required: Collection[str]
    ) -> Mapping[str, object]:
        """The keys of a mapping; unknown and missing ones are problems."""
        inner = f"{path}." if path else ""
        if not isinstance(form, Mapping):
            found = "empty" if form is None else repr(form)
            self.bad(path or self.subject, f"{found}: a mapping with the keys {', '.join(known)}")
            self.unread.update(f"{inner}{key}" for key in known)
            return {}
        for key in form:
            if key not in known:
                self.problems.append(Problem(f"{inner}{key}", unknown(str(key), known)))
        for key in required:
            if key not in form:
                self.bad(f"{inner}{key}", "missing: this key is required")
        return form

    def sequence(self, path: str, form: object) -> Sequence[object]:
        if isinstance(form, Sequence) and not isinstance(form, str):
            return form
        self.bad(path, f"{form!r}: a list")
        return ()

    def integers(self, path: str, form: object, wanted: str) -> tuple[int, ...]:
        items = form if isinstance(form, Sequence) and not isinstance(form, str) else [None]
        numbers = tuple(item for item in items if is_integer(item))
        if len(numbers) == len(items):
            return numbers
        self.bad(path, f"{form!r}: {wanted}")
        return ()

    def device_ids(self, path: str, form: object) -> tuple[int, ...]:
        """A list of ids, or a text of ids and ranges: `0-3,8`."""
        if not isinstance(form, str):
            return self.integers(path, form, 'a list of device ids or a text such as "0-3,8"')
        devices: list[int] = []
        for part in form.split(","):
            ends = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", part)
            if ends is None or int(ends[2] or ends[1]) < int(ends[1]):
                self.bad(path, f'{form[:80]!r}: a range is low-high, as in "0-3,8"')
                return ()
            low, high = int(ends[1]), int(ends[2] or ends[1])
            rule = beyond("devices", len(devices) + high + 1 - low, MOST_DEVICES)
            if rule:
                self.bad(path, f"{form[:80]!r}: {rule}")
                return ()
            devices += range(low, high + 1)
        return tuple(devices)

    def integer(self, path: str, form: object, stand_in: int) -> int:
        if is_integer(form):
            return form
        self.bad(path, f"{form!r}: an integer")
        return stand_in

    def number(self, path: str, form: object, stand_in: float) -> float:
        if isinstance(form, int | float) and not isinstance(form, bool):
            return float(form)
        self.bad(path, f"{form!r}: a number, such as 4.0e+11")
        return stand_in

    def optional(self, path: str, form: object) -> int | None:
        number = None if form is None else self.integer(path, form, 1)
        return None if path in self.unread else number

    def flag(self, path: str, form: object) -> bool:
        if not isinstance(form, bool):
            self.bad(path, f"{form!r}: true or false")
        return form is True

    def text(self, path: str, form: object) -> str:
        if isinstance(form, str):
            return form
        self.bad(path, f"{form!r}: a text")
        return ""

    def choice(self, path: str, form: object, stand_in: Choice) -> Choice:
        for choice in type(stand_in):
            if choice.value == form:
                return choice
        self.bad(path, f"{form!r}: one of {names(type(stand_in))}")
        return stand_in

    def bad(self, path: str, text: str) -> None:
        self.problems.append(Problem(path, text))
        self.unread.add(path)


def is_integer(form: object) -> TypeGuard[int]:
    return isinstance(form, int) and not isinstance(form, bool)


def names(choices: type[Enum]) -> str:
    return ", ".join(str(choice.value) for choice in choices)


def unknown(key: str, known: Collection[str]) -> str:
    near = get_close_matches(key, known, n=1)
    return f"unknown key, did you mean {near[0]}?" if near else f"unknown key, known are {', '.join(known)}"
