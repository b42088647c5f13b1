"""Which ranks take the same way through a step: whose tables differ in peers, groups and tags only."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, cast

from ...base.comm_plan import CommStep, GradBucket, ParamBucket, Piece
from ...program.program import Instruction, RankProgram, Shard

PLACE = frozenset({"rank", "device", "pipeline", "stage", "coordinate"})
"""What tells a rank from others like it, and steers nothing in its step."""
PARTNERS: dict[type, frozenset[str]] = {
    CommStep: frozenset({"id", "group", "note"}),
    Piece: frozenset({"peer"}),
    Instruction: frozenset({"tag"}),
    GradBucket: frozenset({"id", "group"}),
    ParamBucket: frozenset({"id", "group"}),
    Shard: frozenset({"boxes", "owned", "whole_shape", "whole_view"}),
}
"""Fields that say with whom a rank meets, or which part of the whole it holds: they steer nothing either."""


@dataclass(slots=True)
class Likeness:
    """Numbers for what steers a rank through a step; equal numbers, equal ways.

    Every field counts but those named above, so that a field that is added counts too.
    """

    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _known: dict[int, tuple[object, int]] = field(default_factory=dict)

    def of(self, own: RankProgram) -> int:
        """Equal for ranks that make the same requests with the same types, in the same order."""
        return self._number(tuple(self._table(own, name) for name in _names(RankProgram, PLACE)))

    def _table(self, own: RankProgram, name: str) -> Hashable:
        held = getattr(own, name)
        if name == "rows":
            return tuple(high - low for low, high in held)
        if name == "literals":
            return repr(held)
        return tuple(map(self._entry, held)) if isinstance(held, list) else self._content(held)

    def _entry(self, entry: object) -> int:
        """Entries that several ranks share are looked into once."""
        if id(entry) not in self._known:
            self._known[id(entry)] = (entry, self._number(self._content(entry)))
        return self._known[id(entry)][1]

    def _content(self, value: Any) -> Hashable:
        if isinstance(value, tuple) and value and type(value[0]) in PARTNERS:
            return tuple(map(self._content, value))
        kind: Any = type(value)
        if kind not in PARTNERS:
            return cast(Hashable, value)
        held = [self._content(getattr(value, name)) for name in _names(kind, PARTNERS[kind])]
        alone = isinstance(value, (GradBucket, ParamBucket)) and len(value.group) == 1
        return (alone, *held)

    def _number(self, content: Hashable) -> int:
        return self._numbers.setdefault(content, len(self._numbers))


@cache
def _names(kind: Any, left_out: frozenset[str]) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind) if item.name not in left_out)
