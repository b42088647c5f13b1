"""Tables of ranks repeat from rank to rank: an entry that was read before is the same object again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from .decode import reader, required_and_optional
from .encode import TAGS, untyped_fields
from .json_node import Node

T = TypeVar("T")


class SharingReader:
    """Reads dataclasses one after the other. Equal entries of their lists become one object.

    Only entries that can't change are shared. Every entry is checked: one of the same text was read
    by the same reader.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[type, str], object] = {}
        self._tables: dict[tuple[type, str], list[object]] = {}

    def decode(self, kind: type[T], node: Node) -> T:
        """As `decode.decode`; the lists themselves are new ones."""
        shape: Any = kind
        hints = _hints(shape)
        found = node.fields(*required_and_optional(shape))
        read = {name: self._field(hints[name], item) for name, item in found.items()}
        return kind(**read)

    def _field(self, hint: Any, node: Node) -> object:
        entry = frozen_entry(hint)
        if entry is None or not isinstance(node.value, list):
            return reader(hint)(node)
        key = (entry, repr(node.value))  # tells 1, 1.0 and True apart
        if key not in self._tables:
            read = reader(entry)
            self._tables[key] = [self._entry(entry, read, item) for item in node.items()]
        return list(self._tables[key])

    def _entry(self, kind: type, read: Callable[[Node], object], node: Node) -> object:
        key = (kind, repr(node.value))
        if key not in self._entries:
            self._entries[key] = read(node)
        return self._entries[key]


@cache
def frozen_entry(hint: Any) -> Any:
    """The dataclass that a list holds, if its values can't change; else None."""
    if get_origin(hint) is not list:
        return None
    entry: Any = get_args(hint)[0]
    is_plain = entry not in TAGS and is_dataclass(entry)
    frozen: bool = is_plain and not untyped_fields(entry) and _is_frozen(get_args(hint)[0])
    return entry if frozen else None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _is_frozen(kind: Any) -> bool:
    """Frozen itself, and so is every dataclass in its fields."""
    if not kind.__dataclass_params__.frozen:
        return False
    hints = _hints(kind)
    return all(_holds_frozen(hints[item.name]) for item in fields(kind))


def _holds_frozen(hint: Any) -> bool:
    inside: Any = hint
    if is_dataclass(hint):
        return _is_frozen(inside)
    if get_origin(hint) in (list, dict, set):
        return False
    return all(_holds_frozen(inner) for inner in get_args(hint) if inner is not Ellipsis)
