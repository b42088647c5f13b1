"""A JSON value that knows its file and key path, so that a wrong one can be named exactly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn, TypeVar

from ..errors import ArtifactError
from ..limits import LARGEST
from .json_text import SHOWN, Json

E = TypeVar("E", bound=Enum)


@dataclass(frozen=True, slots=True)
class Node:
    """One value inside a file. Every reader below returns it with its type proven, or raises."""

    value: Json
    file: str
    parent: Node | None = None
    key: str | int = ""

    def path(self) -> str:
        """Where the value stands, such as `segments[0].rows[3].op`."""
        if self.parent is None:
            return ""
        before = self.parent.path()
        if isinstance(self.key, int):
            return f"{before}[{self.key}]"
        return f"{before}.{self.key}" if before else self.key

    def fail(self, expected: str) -> NoReturn:
        """Raises the error that names this value and what should stand here."""
        shown = json.dumps(self.value, ensure_ascii=False)
        raise ArtifactError(
            f"{self.file} does not hold what its place asks for",
            at=f"{self.file}: {self.path() or 'the whole file'}",
            details=[
                ("found", shown if len(shown) <= SHOWN else shown[:SHOWN] + "..."),
                ("wanted", expected),
            ],
            fix="compile again with this version of hspmd_compiler",
        )

    def fields(self, required: frozenset[str], optional: frozenset[str] = frozenset()) -> dict[str, Node]:
        """The members of an object that has all `required` keys and none beyond `optional`."""
        if not isinstance(self.value, dict):
            self.fail("an object")
        missing = sorted(required - self.value.keys())
        if missing:
            self.fail(f"an object with the keys {', '.join(missing)}")
        unknown = sorted(self.value.keys() - required - optional)
        if unknown:
            self.fail(f"an object without the unknown keys {', '.join(unknown)}")
        return {key: Node(item, self.file, self, key) for key, item in self.value.items()}

    def entries(self) -> Mapping[str, Node]:
        """The members of an object with keys of any name."""
        if not isinstance(self.value, dict):
            self.fail("an object")
        return {key: Node(item, self.file, self, key) for key, item in self.value.items()}

    def items(self, length: int | None = None) -> list[Node]:
        """The members of a list, of a given length if one is named."""
        if not isinstance(self.value, list):
            self.fail("a list")
        if length is not None and len(self.value) != length:
            self.fail(f"a list of {length}")
        return [Node(item, self.file, self, index) for index, item in enumerate(self.value)]

    def integer(self) -> int:
        if type(self.value) is not int or abs(self.value) > LARGEST:
            self.fail("a whole number of at most 63 bits")
        return self.value

    def natural(self) -> int:
        """A whole number of 0 or more."""
        value = self.integer()
        if value < 0:
            self.fail("a whole number of 0 or more")
        return value

    def text(self) -> str:
        if not isinstance(self.value, str):
            self.fail("a text")
        return self.value

    def boolean(self) -> bool:
        if not isinstance(self.value, bool):
            self.fail("true or false")
        return self.value

    def member(self, kind: type[E]) -> E:
        """The member of an enum that has this value."""
        for member in kind:
            if member.value == self.value:
                return member
        self.fail(f"one of {', '.join(str(member.value) for member in kind)}")
