"""Tables of ranks repeat from rank to rank: the text of an entry that was written before is used again."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from ..base.codec import Json, encode
from ..program.program import RankProgram
from .json_text import Ready, ready

SHARED = ("comms", "transfers", "shards", "grad_buckets", "instructions", "param_buckets")
"""Lists of a rank whose entries can't change; ranks that have the same have one object."""


class SharingWriter:
    """Encodes the ranks of one program, one after the other; the program keeps the entries meanwhile."""

    def __init__(self) -> None:
        self._texts: dict[int, Ready] = {}

    def encode(self, own: RankProgram) -> dict[str, Json]:
        """As `codec.encode`, the entries of the shared lists being text already."""
        empty: dict[str, Any] = {name: [] for name in SHARED}
        plain = encode(replace(own, **empty))
        assert isinstance(plain, dict), "the form of a dataclass"
        lists: dict[str, list[Json]] = {name: [*map(self._entry, getattr(own, name))] for name in SHARED}
        names = (item.name for item in fields(own))
        return {name: lists.get(name) or plain[name] for name in names if lists.get(name) or name in plain}

    def _entry(self, value: object) -> Ready:
        found = self._texts.get(id(value))
        if found is None:
            found = self._texts[id(value)] = ready(encode(value))
        return found
