"""Tables of ranks repeat from rank to rank: the text of an entry that was written before is used again."""

from __future__ import annotations

from ..codec import Json, encode, written_fields
from .decode_shared import tables_of
from .json_text import Ready, ready
from .program import RankProgram


class SharingWriter:
    """Encodes the ranks of one program, one after the other; the same object is written once.

    Only entries that can't change are shared, and the program keeps them as long as this is used.
    """

    def __init__(self) -> None:
        self._texts: dict[int, Ready] = {}

    def encode(self, own: RankProgram) -> Json:
        """As `codec.encode`, the entries of its lists being text already."""
        tables = tables_of(RankProgram)
        written: dict[str, Json] = {}
        for item, held in written_fields(own):
            shared = item.name in tables
            written[item.name] = [self._entry(each) for each in held] if shared else item.encode(held)
        return written

    def _entry(self, value: object) -> Ready:
        found = self._texts.get(id(value))
        if found is None:
            found = self._texts[id(value)] = ready(encode(value))
        return found
