"""Typed fields out of a JSON object, with every bad one told in one error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TypeGuard, TypeVar

from .errors import OptionError

Clash = tuple[str, str]
Choice = TypeVar("Choice", bound=Enum)
Built = TypeVar("Built")


class JsonFields:
    """Reads fields by type; `build` raises one OptionError with all bad values.

    subject: what the options are of. prefix: goes before each name in the error.
    """

    def __init__(self, subject: str, data: object, known: Sequence[str], prefix: str = "") -> None:
        if not isinstance(data, Mapping):
            raise OptionError(
                f"{subject} options are not an object", details=[(prefix.rstrip(".") or subject, repr(data))]
            )
        self._subject = subject
        self._prefix = prefix
        self._data: dict[str, object] = {str(name): value for name, value in data.items()}
        self._clashes: list[Clash] = [
            (prefix + name, f"unknown; known are {', '.join(known)}")
            for name in self._data
            if name not in known
        ]

    def build(self, kind: Callable[..., Built], values: Mapping[str, object]) -> Built:
        """The value, or all clashes: those of the fields' types and those that `kind` raises."""
        try:
            built = kind(**values)
        except OptionError as error:
            raise_clashes(self._subject, [*self._clashes, *error.details])
            raise
        raise_clashes(self._subject, self._clashes)
        return built

    def number(self, name: str, default: float) -> float:
        value = self._data.get(name, default)
        if is_number(value):
            return float(value)
        return self._bad(name, "a number", default)

    def optional_number(self, name: str) -> float | None:
        """A number, the text `inf`, or None where it is missing or null."""
        value = self._data.get(name)
        if value is None or value == "inf":
            return None if value is None else math.inf
        return self.number(name, 1.0)

    def integer(self, name: str, default: int) -> int:
        value = self._data.get(name, default)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        return self._bad(name, "a whole number", default)

    def optional_integer(self, name: str) -> int | None:
        return None if self._data.get(name) is None else self.integer(name, 1)

    def flag(self, name: str, default: bool) -> bool:
        value = self._data.get(name, default)
        return value if isinstance(value, bool) else self._bad(name, "true or false", default)

    def numbers(self, name: str, default: tuple[float, ...]) -> tuple[float, ...]:
        value = self._data.get(name, default)
        if isinstance(value, list | tuple) and all(is_number(item) for item in value):
            return tuple(float(item) for item in value)
        return self._bad(name, "a list of numbers", default)

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._data.get(name, ())
        if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            return tuple(value)
        return self._bad(name, "a list of texts", ())

    def choice(self, name: str, kind: type[Choice], default: Choice) -> Choice:
        value = self._data.get(name, default.value)
        for member in kind:
            if member.value == value:
                return member
        return self._bad(name, f"one of {', '.join(str(member.value) for member in kind)}", default)

    def nested(self, name: str, read: Callable[[object], Built], default: Built) -> Built:
        """What `read` makes of a field; its clashes are added to ours."""
        if name not in self._data:
            return default
        try:
            return read(self._data[name])
        except OptionError as error:
            self._clashes += error.details
            return default

    def _bad(self, name: str, wanted: str, default: Built) -> Built:
        self._clashes.append((self._prefix + name, f"{self._data[name]!r}: wanted {wanted}"))
        return default


def raise_clashes(subject: str, clashes: Sequence[Clash]) -> None:
    """Raise one OptionError for these (name, text) pairs, each name once; none: return."""
    first: dict[str, str] = {}
    for name, text in clashes:
        first.setdefault(name, text)
    if first:
        raise OptionError(f"bad {subject} options: {', '.join(first)}", details=list(first.items()))


def is_number(value: object) -> TypeGuard[float]:
    """Whether the value is a number, infinity too, NaN and booleans not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def is_finite(value: object) -> TypeGuard[float]:
    """Whether the value is a number other than infinity."""
    return is_number(value) and math.isfinite(value)


def is_count(value: object) -> TypeGuard[int]:
    """Whether the value is a whole number of 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
