"""Tables of ranks repeat from rank to rank: a list of several is read once, equal entries are one object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from functools import cache
from typing import Any, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

from ..base.codec import Json, damaged, decode
from ..base.typed import Misfits, Place, read
from .encode_shared import TABLE

T = TypeVar("T")
TableOf: TypeAlias = Callable[[int], tuple[str, Json]]
"""The file of a table by its number, and what it holds."""


class SharingReader:
    """Reads dataclasses one after the other. Equal entries of their lists become one object.

    Only entries that can't change are shared. Every entry is checked: one of the same text was read
    as the same dataclass.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[type, str], object] = {}
        self._tables: dict[tuple[type, tuple[str, ...]], list[object]] = {}
        self._files: dict[tuple[type, int], list[object]] = {}

    def decode(self, kind: type[T], value: object, file: str, table_of: TableOf | None = None) -> T:
        """As `codec.decode`; the lists themselves are new ones. table_of: the file of a numbered table."""
        given: Mapping[str, object] = value if isinstance(value, Mapping) else {}
        entries = tables_of(cast(Any, kind))
        tables = {name: items for name in entries if isinstance(items := given.get(name), list)}
        numbers = {name: number for name in entries if (number := _number(given.get(name))) is not None}
        numbers = numbers if table_of is not None else {}
        apart: dict[str, object] = {name: [] for name in (*tables, *numbers)}
        rest: Any = decode(kind, {**given, **apart} if apart else value, file)
        read = {name: self._table(entries[name], (name,), items, file) for name, items in tables.items()}
        for name, number in numbers.items():
            assert table_of is not None, "else there are no numbers"
            read[name] = self._numbered(entries[name], number, table_of)
        return cast(T, replace(rest, **read))

    def _numbered(self, entry: type, number: int, table_of: TableOf) -> list[object]:
        if (entry, number) not in self._files:
            file, items = table_of(number)
            if not isinstance(items, list):
                raise damaged(file, [((), items, "a list")])
            self._files[entry, number] = self._table(entry, (), [*items], file)
        return list(self._files[entry, number])

    def _table(self, entry: type, place: Place, items: list[object], file: str) -> list[object]:
        texts = [repr(item) for item in items]  # tells 1, 1.0 and True apart
        key = (entry, tuple(texts))
        if key not in self._tables:
            keys = [(entry, text) for text in texts]
            new = {each: index for index, each in enumerate(keys) if each not in self._entries}
            made = _decoded(entry, place, items, list(new.values()), file)
            self._entries.update(zip(new, made, strict=True))
            self._tables[key] = [self._entries[each] for each in keys]
        return list(self._tables[key])


def _decoded(entry: Any, place: Place, items: list[object], indexes: list[int], file: str) -> list[object]:
    """Entries of a table, all in one call; where one is bad each alone, so that the error has its place."""
    try:
        return cast("list[object]", read(list[entry], [items[index] for index in indexes]))
    except Misfits:
        return [decode(entry, items[index], file, (*place, index)) for index in indexes]


def _number(value: object) -> int | None:
    """Of a table, where a rank has one in place of a list."""
    if not isinstance(value, Mapping) or value.keys() != {TABLE}:
        return None
    number = value[TABLE]
    return number if type(number) is int and number >= 0 else None


@cache
def tables_of(kind: Any) -> dict[str, Any]:
    """The lists of a dataclass whose entries are frozen dataclasses, with these."""
    lists = {
        name: get_args(hint)[0] for name, hint in get_type_hints(kind).items() if get_origin(hint) is list
    }
    return {
        name: entry
        for name, entry in lists.items()
        if is_dataclass(entry) and cast(Any, entry).__dataclass_params__.frozen
    }
