"""Tables of ranks repeat from rank to rank: what several have is written once, each entry encoded once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from ..base.codec import Json, encode
from ..program.program import RankProgram
from .json_text import Ready, ready

SHARED = ("comms", "transfers", "shards", "grad_buckets", "instructions", "param_buckets")
"""Lists of a rank whose entries can't change; ranks that have the same have one object."""


TABLE = "table"
"""What a rank has in place of a list that others have too: the number of its file."""
MOST_COPIES = 3
"""A list that more ranks have is written once; up to so many a rank's file is easier to read whole."""
EntryTexts = tuple[Ready, ...]


class SharingWriter:
    """Encodes the ranks of one program, one after the other; the program keeps the entries meanwhile.

    A list that many of them have is a table, in a file of its own; `tables`: those met so far, in order.
    """

    def __init__(self, ranks: Sequence[RankProgram]) -> None:
        self._texts: dict[int, Ready] = {}
        self._uses = Counter(self._table(own, name) for own in ranks for name in SHARED)
        self.tables: dict[EntryTexts, int] = {}

    def encode(self, own: RankProgram) -> dict[str, Json]:
        """As `codec.encode`, the shared lists being text already, or the number of a table."""
        empty: dict[str, Any] = {name: [] for name in SHARED}
        plain = encode(replace(own, **empty))
        assert isinstance(plain, dict), "the form of a dataclass"
        lists = {name: self._list(self._table(own, name)) for name in SHARED}
        names = (item.name for item in fields(own))
        return {name: lists.get(name) or plain[name] for name in names if lists.get(name) or name in plain}

    def _list(self, table: EntryTexts) -> Json:
        if not table or self._uses[table] <= MOST_COPIES:
            return list(table)
        number = self.tables.setdefault(table, len(self.tables))
        return ready({TABLE: number})

    def _table(self, own: RankProgram, name: str) -> EntryTexts:
        return tuple(map(self._entry, getattr(own, name)))

    def _entry(self, value: object) -> Ready:
        found = self._texts.get(id(value))
        if found is None:
            found = self._texts[id(value)] = ready(encode(value))
        return found
