"""The flags of a command line as literal values. Nothing is ever executed or expanded."""

from __future__ import annotations

import shlex
from collections.abc import Collection

from ...base.plain_content import python_literal
from .format_values import FormatValues


def read_flags(text: str, known: Collection[str], values: FormatValues) -> dict[str, object]:
    """The flags of a command line and their values; words before the first flag are left out.

    known: the flags whose values are judged here.
    """
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError:
        values.bad("command line", "a quote is not closed")
        words = []
    flags: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            flags[name] = [value] if sign else []
        elif name:
            flags[name].append(word)
    for key, found in flags.items():
        if own_name(key) in known and any("$" in word or "`" in word for word in found):
            shown = " ".join(found)
            values.bad(key, f"{shown!r}: shell expressions are never executed, write the value itself")
    return {key: _value(found) for key, found in flags.items()}


def own_name(flag: str) -> str:
    """A flag's name as the program's own code has it."""
    return flag.lstrip("-").replace("-", "_")


def _value(words: list[str]) -> object:
    """A flag without words is true, one with several is a list."""
    items = [python_literal(word) for word in words]
    return True if not items else items[0] if len(items) == 1 else items
