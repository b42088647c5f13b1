"""KEY=VALUE lines of a shell script as literal values. Nothing is ever executed or expanded."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...base.bad_values import Problem
from ...base.plain_content import python_literal

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ShellValue:
    """The text of a value, quotes taken off, and the line where it stands."""

    text: str
    line: int


@dataclass(slots=True)
class ShellValues:
    """The last value of each key; what can't be read; the keys that were set more than once."""

    values: dict[str, ShellValue] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)


def read_assignments(text: str) -> ShellValues:
    """The assignments of a text: comments, `export`, quotes and continued lines are understood."""
    read = ShellValues()
    for line, words in _statements(text, read.problems):
        for word in words[1:] if words[:1] == ["export"] else words:
            if not _read_word(word, line, read):
                break
    return read


def literal(text: str) -> object:
    """The Python or JSON literal a value holds, its text where it is none; null is None."""
    if text.strip().lower() in ("null", "none", ""):
        return None
    if text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    return python_literal(text)


def _read_word(word: str, line: int, read: ShellValues) -> bool:
    """Take one assignment; whether the rest of its line is worth reading."""
    found = ASSIGNMENT.fullmatch(word)
    if found is None:
        rule = "not KEY=VALUE; give the lines of one case only, and quote a value that holds spaces"
        read.problems.append(Problem(f"line {line}", f"{word!r}: {rule}"))
        return False
    key, text = found[1], found[2]
    if "$" in text or "`" in text:
        rule = "shell expressions are never executed, write the value itself"
        read.problems.append(Problem(key, f"{text!r} in line {line}: {rule}"))
    if key in read.values and key not in read.repeated:
        read.repeated.append(key)
    read.values[key] = ShellValue(text, line)
    return True


def _statements(text: str, problems: list[Problem]) -> Iterator[tuple[int, list[str]]]:
    """(line number, words) of each statement; an open quote or a final backslash takes the next line."""
    start, held = 1, ""
    for number, line in enumerate(text.splitlines(), 1):
        if not held:
            start = number
        held += line
        if line.endswith("\\"):
            held = held[:-1]
            continue
        try:
            words = shlex.split(held, comments=True)
        except ValueError:
            held += "\n"
            continue
        held = ""
        if words:
            yield start, words
    if held:
        problems.append(Problem(f"line {start}", f"{held.splitlines()[0][:60]!r}: a quote is not closed"))
