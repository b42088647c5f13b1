"""Tables of ranks repeat from rank to rank: an entry that was read before is the same object again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from ..base.codec import decode
from ..base.typed import Misfits, read

T = TypeVar("T")


class SharingReader:
    """Reads dataclasses one after the other. Equal entries of their lists become one object.

    Only entries that can't change are shared. Every entry is checked: one of the same text was read
    as the same dataclass.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[type, str], object] = {}
        self._tables: dict[tuple[type, tuple[str, ...]], list[object]] = {}

    def decode(self, kind: type[T], value: object, file: str) -> T:
        """As `codec.decode`; the lists themselves are new ones."""
        given: Mapping[str, object] = value if isinstance(value, Mapping) else {}
        entries = tables_of(cast(Any, kind))
        tables = {name: items for name in entries if isinstance(items := given.get(name), list)}
        rest: Any = decode(kind, {**given, **{name: [] for name in tables}} if tables else value, file)
        read = {name: self._table(entries[name], name, items, file) for name, items in tables.items()}
        return cast(T, replace(rest, **read))

    def _table(self, entry: type, name: str, items: list[object], file: str) -> list[object]:
        texts = [repr(item) for item in items]  # tells 1, 1.0 and True apart
        key = (entry, tuple(texts))
        if key not in self._tables:
            keys = [(entry, text) for text in texts]
            new = {each: index for index, each in enumerate(keys) if each not in self._entries}
            made = _decoded(entry, name, items, list(new.values()), file)
            self._entries.update(zip(new, made, strict=True))
            self._tables[key] = [self._entries[each] for each in keys]
        return list(self._tables[key])


def _decoded(entry: Any, name: str, items: list[object], indexes: list[int], file: str) -> list[object]:
    """Entries of a table, all in one call; where one is bad each alone, so that the error has its place."""
    try:
        return cast("list[object]", read(list[entry], [items[index] for index in indexes]))
    except Misfits:
        return [decode(entry, items[index], file, (name, index)) for index in indexes]


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
