"""JSON and YAML as plain values: texts, finite numbers, truth values, lists, objects; of bounded size."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from .bad_values import Problem
from .limits import DEEPEST, LARGEST, MOST_VALUES, SLOW_CHARACTERS, TEXT_BYTES, beyond

TIMESTAMP, INTEGER, FLOAT = (f"tag:yaml.org,2002:{name}" for name in ("timestamp", "int", "float"))
DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9]*)$", re.ASCII)
FRACTION = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.nan$")
LEAVES = frozenset((str, int, float, bool, type(None)))
"""Asked first, since most values are leaves and an instance of Mapping is slow to tell."""
NUMBER_STARTS = "-+.0123456789"


class PlainLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Dates, numbers to base 60 or 8, and underscores in numbers are texts: nobody means them here."""


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in (TIMESTAMP, INTEGER, FLOAT)]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
PlainLoader.add_implicit_resolver(INTEGER, DECIMAL, list(NUMBER_STARTS))
PlainLoader.add_implicit_resolver(FLOAT, FRACTION, list(NUMBER_STARTS))


def text_of(path: Path, most_bytes: int = TEXT_BYTES) -> str:
    """A file's text, a byte order mark left out; OSError or UnicodeDecodeError where there is none."""
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except ValueError as error:  # a name with a null in it
        raise OSError(0, str(error)) from error
    if len(content) > most_bytes:
        raise OSError(0, f"more than {most_bytes:,} bytes, which is no text of this kind")
    return content.decode("utf-8-sig")


def python_literal(text: str) -> object:
    """The literal of Python that a text holds, such as `[1, 2]`; the text itself where it holds none."""
    try:
        value: object = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
    return value


def long_text(text: str) -> list[Problem]:
    """What is wrong with a text that is no JSON and takes too long to read."""
    rule = beyond("characters of a text that is no JSON", len(text), SLOW_CHARACTERS)
    return [Problem("the text", rule)] if rule else []


def problems_of(content: object, most_values: int = MOST_VALUES, may_be_nan: bool = False) -> list[Problem]:
    """What of a content is no plain value; its size counts a list that is named twice as two.

    may_be_nan: numbers that are not finite are left to the reader, which tells them beside other values.
    """
    too_large = _size_problems(_size(content, _items), "it", most_values)
    return too_large or list(_problems("", content, may_be_nan))


def problems_of_node(node: Any) -> list[Problem]:
    """Whether a YAML document, its aliases written out, stands for too much, or is nested too deep."""
    return _size_problems(_size(node, inner_nodes), "with its aliases it")


def inner_nodes(node: Any) -> list[Any] | None:
    """Keys, values and entries of a YAML node; None of one without any inside."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return None
    return [part for entry in node.value for part in (entry if isinstance(entry, tuple) else (entry,))]


def _items(value: object) -> Iterable[object] | None:
    if type(value) in LEAVES:
        return None
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else None


def _size(content: object, inner: Callable[[Any], Iterable[object] | None]) -> int | None:
    """As many values as it stands for; None: nested too deep. inner: of a container what is in it."""
    known: dict[int, int | None] = {}
    around: set[int] = set()

    def size(value: object, depth: int) -> int | None:
        items = inner(value)
        if items is None:
            return 1
        if depth > DEEPEST or id(value) in around:
            return None
        if id(value) not in known:
            around.add(id(value))
            sizes = [size(item, depth + 1) for item in items]
            around.discard(id(value))
            known[id(value)] = None if None in sizes else 1 + sum(each for each in sizes if each is not None)
        return known[id(value)]

    return size(content, 0)


def _size_problems(size: int | None, what: str, most_values: int = MOST_VALUES) -> list[Problem]:
    if size is None:
        return [Problem("the text", f"lists and objects are nested deeper than {DEEPEST}, or in themselves")]
    if size > most_values:
        return [Problem("the text", f"{what} stands for {size:,} values: at most {most_values:,}")]
    return []


def _problems(path: str, value: object, may_be_nan: bool) -> Iterator[Problem]:
    if type(value) not in LEAVES and isinstance(value, Mapping):
        for key, item in value.items():
            inner = f"{path}.{key}" if path else str(key)[:80]
            if not isinstance(key, str | int):
                yield Problem(inner, f"{str(key)[:80]!r} as a key: keys are texts")
            yield from _problems(inner, item, may_be_nan)
    elif type(value) not in LEAVES and isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _problems(f"{path}[{index}]", item, may_be_nan)
    elif (wrong := _wrong(value)) and not (may_be_nan and isinstance(value, float)):
        yield Problem(path or "the text", wrong)


def _wrong(value: object) -> str:
    if isinstance(value, int) and abs(value) > LARGEST:
        return f"a whole number of {value.bit_length()} bits: of at most 63"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value}: a finite number"
    if value is None or isinstance(value, (bool, int, float, str)):
        return ""
    return f"{str(value)[:80]!r}, a {type(value).__name__}: texts, numbers, true and false, lists, objects"
