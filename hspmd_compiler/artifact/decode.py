"""JSON back into values, strictly: every field has its declared type, or the file and key path are named."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ..dtypes import BYTES
from ..errors import InternalError
from .encode import FLOAT_TAG, TAGS
from .json_node import Node

T = TypeVar("T")
Reader = Callable[[Node], Any]

FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def decode(kind: type[T], node: Node) -> T:
    """The value of dataclass `kind` that stands at `node`."""
    made: Reader = reader(cast(Any, kind))
    return cast(T, made(node))


@cache
def reader(hint: Any) -> Reader:
    """What reads a value of a type hint; made once per hint."""
    if hint is object:
        return argument
    if hint in SCALARS:
        return SCALARS[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda node: node.member(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return _dataclass_reader(hint)
    return _container_reader(get_origin(hint), get_args(hint))


def _container_reader(origin: Any, inner: tuple[Any, ...]) -> Reader:
    if origin is dict:
        value = reader(inner[1])
        return lambda node: {key: value(item) for key, item in node.entries().items()}
    if origin is list:
        item = reader(inner[0])
        return lambda node: [item(entry) for entry in node.items()]
    if origin is tuple and inner[-1] is Ellipsis:
        item = reader(inner[0])
        return lambda node: tuple(item(entry) for entry in node.items())
    if origin is tuple:
        readers = [reader(hint) for hint in inner]
        return lambda node: tuple(
            read(entry) for read, entry in zip(readers, node.items(len(readers)), strict=True)
        )
    if origin in (Union, types.UnionType) and len(inner) == 2 and inner[1] is type(None):
        some = reader(inner[0])
        return lambda node: None if node.value is None else some(node)
    raise InternalError("no reader for a type", details=[("type", f"{origin} {inner}")])


def _dataclass_reader(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    members = fields(kind)
    if kind in TAGS:
        only = reader(hints[members[0].name])
        return lambda node: _tagged(kind, only(node), node)
    readers: dict[str, Reader] = {}

    def read(node: Node) -> object:
        if not readers:  # made late, so that a dataclass may hold itself
            readers.update({member.name: reader(hints[member.name]) for member in members})
        found = node.fields(required, optional)
        return kind(**{name: readers[name](item) for name, item in found.items()})

    required, optional = required_and_optional(kind)
    return read


@cache
def required_and_optional(kind: Any) -> tuple[frozenset[str], frozenset[str]]:
    """Fields of a dataclass without a default, and those that may be left out."""
    members = fields(kind)
    has_default = {m.name for m in members if m.default is not MISSING or m.default_factory is not MISSING}
    return frozenset(member.name for member in members) - has_default, frozenset(has_default)


def _tagged(kind: Any, held: object, node: Node) -> object:
    if isinstance(held, int) and held < 0:
        node.fail("a whole number of 0 or more")
    if isinstance(held, str) and held not in BYTES:
        node.fail(f"a dtype: {', '.join(BYTES)}")
    return kind(held)


def argument(node: Node) -> object:
    """An operator's argument: plain data, or an object with one of the known tags."""
    if isinstance(node.value, list):
        return tuple(argument(item) for item in node.items())
    if isinstance(node.value, int) and not isinstance(node.value, bool):
        return node.integer()
    if not isinstance(node.value, dict):
        return node.value
    if len(node.value) == 1:
        ((tag, held),) = node.entries().items()
        if tag == FLOAT_TAG and isinstance(held.value, str) and held.value in FLOATS:
            return FLOATS[held.value]
        for kind, name in TAGS.items():
            if tag == name:
                return reader(kind)(held)
    node.fail(f"a plain value, or an object with one key of {', '.join([*TAGS.values(), FLOAT_TAG])}")


def number(node: Node) -> float:
    """A finite number, or the tagged form of one that is not finite."""
    value = argument(node) if isinstance(node.value, dict) else node.value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        node.fail("a number")
    return float(value)


SCALARS: dict[Any, Reader] = {
    int: Node.integer,
    str: Node.text,
    bool: Node.boolean,
    float: number,
}
