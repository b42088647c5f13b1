"""Classes of elements: same holders before, same needers after, whatever their parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..base.comm_plan import Box
from ..base.dtypes import BYTES
from ..program.boxes import volume
from ..program.state.part_places import common_view, in_view
from ..program.state.state_elements import StateExtent, element_type, held, kinds_of, needed, pairs
from ..program.switch_plan import COPY, VALUE, StatePart, SwitchScope
from .demand import SwitchDemand
from .kept_state import KeptKey, KeptPiece, KeptState, RankRow
from .overlay import Members, overlay

Extents = dict[int, StateExtent]
"""Of a kind, by number of a piece."""
View = tuple[int, ...]


@dataclass(slots=True)
class ElementClass:
    """kinds: what moves of each element. parts: as in SwitchClass."""

    kinds: tuple[str, ...]
    element_bytes: int
    holders: tuple[int, ...]
    needers: tuple[int, ...]
    elements: int = 0
    parts: list[StatePart] = field(default_factory=list)

    @property
    def demand(self) -> SwitchDemand:
        return SwitchDemand(self.elements, self.element_bytes, self.holders, self.needers)


@dataclass(frozen=True, slots=True)
class _KindGroup:
    """Kinds whose elements the same ranks hold and need. cast: what of them a rank casts from its VALUE."""

    held: Extents
    needed: Extents
    cast: Extents
    kinds: list[str] = field(default_factory=list)


BoxRanks = dict[Box, list[int]]
"""The ranks of each box, ascending; no element is in two boxes of one rank."""


@dataclass(slots=True)
class _PlacedBoxes:
    """Boxes of a parameter by the ranks that hold them, need them, and cast them from their VALUE."""

    holders: BoxRanks = field(default_factory=dict)
    needers: BoxRanks = field(default_factory=dict)
    casting: BoxRanks = field(default_factory=dict)

    def of(self, inside: Sequence[Box]) -> tuple[Members, Members]:
        """The holders and needers of a cell that is inside these boxes."""
        casting = _ranks(self.casting, inside) if self.casting else ()
        needers = _ranks(self.needers, inside)
        if casting:
            needers = tuple(rank for rank in needers if rank not in casting)
        return _ranks(self.holders, inside), needers


def _ranks(of: BoxRanks, boxes: Sequence[Box]) -> Members:
    lists = [of[box] for box in boxes if box in of]
    return tuple(lists[0]) if len(lists) == 1 else tuple(sorted(rank for each in lists for rank in each))


def element_classes(kept: KeptState, scope: SwitchScope, moments: tuple[str, ...]) -> Iterator[ElementClass]:
    """All classes that somebody needs, in a fixed order."""
    found: dict[object, ElementClass] = {}
    groups = _KindGroups(kept.pieces, scope, moments)
    for key, names in kept.names.items():
        view = _view_of(kept.pieces, key)
        if view is None:
            continue
        for group in groups.of(key):
            kinds, size = tuple(group.kinds), groups.element_bytes(key, group)
            for (holders, needers), boxes in _cells(kept.pieces, key, group, view).items():
                made = found.get((kinds, size, holders, needers))
                if made is None:
                    made = found[kinds, size, holders, needers] = ElementClass(kinds, size, holders, needers)
                made.elements += volume(boxes) * len(names)
                made.parts += [StatePart(name, view, boxes) for name in names]
    yield from found.values()


def _view_of(pieces: list[KeptPiece], key: KeptKey) -> View | None:
    """A view that every piece can be cut in; None where nobody needs it, or nothing is in it."""
    before, after = key
    views = {pieces[number].shard.whole_view: None for _, number in (*after, *before)}
    if not after or not all(map(all, views)):
        return None
    return common_view([*views])


@dataclass(slots=True)
class _KindGroups:
    """Kinds of a parameter that lie alike, by which pieces there are of it."""

    pieces: list[KeptPiece]
    scope: SwitchScope
    moments: tuple[str, ...]
    _known: dict[object, list[_KindGroup]] = field(default_factory=dict)

    def of(self, key: KeptKey) -> list[_KindGroup]:
        numbers = tuple(tuple(sorted({number for _, number in rows})) for rows in key)
        if numbers not in self._known:
            self._known[numbers] = self._found(*numbers)
        return self._known[numbers]

    def _found(self, before: Members, after: Members) -> list[_KindGroup]:
        groups: list[_KindGroup] = []
        for kind in kinds_of(self.scope, self.moments):
            wanted = self._needed(after, kind)
            if not any(extent is not StateExtent.NONE for extent in wanted.values()):
                continue
            given = {n: held(self.pieces[n].shard, kind, self.pieces[n].gradients) for n in before}
            cast = self._needed(after, VALUE) if kind == COPY else {}
            made = _KindGroup(given, wanted, cast, [kind])
            same = next((one for one in groups if _alike(one, made)), None)
            if same is None:
                groups.append(made)
            else:
                same.kinds.append(kind)
        return groups

    def _needed(self, numbers: Members, kind: str) -> Extents:
        return {
            number: needed(self.pieces[number].shard, kind, self.scope, self.pieces[number].gradients)
            for number in numbers
        }

    def element_bytes(self, key: KeptKey, group: _KindGroup) -> int:
        """Of all kinds of a group together, by any piece that needs them."""
        number = next(n for _, n in key[1] if group.needed[n] is not StateExtent.NONE)
        piece = self.pieces[number]
        return sum(BYTES[element_type(piece.shard, kind, piece.gradients)] for kind in group.kinds)


def _alike(one: _KindGroup, other: _KindGroup) -> bool:
    return (one.held, one.needed, one.cast) == (other.held, other.needed, other.cast)


def _cells(
    pieces: list[KeptPiece], key: KeptKey, group: _KindGroup, view: View
) -> dict[tuple[Members, Members], tuple[Box, ...]]:
    """The boxes of a parameter that somebody needs, by (holders, needers)."""
    before, after = key
    placed = _PlacedBoxes(
        _placed(pieces, before, group.held, view),
        _placed(pieces, after, group.needed, view),
        _placed(pieces, after, group.cast, view) if group.cast else {},
    )
    boxes = [*dict.fromkeys((*placed.holders, *placed.needers, *placed.casting))]
    joined: dict[Members, tuple[Members, Members]] = {}
    found: dict[tuple[Members, Members], list[Box]] = {}
    for cell, members in overlay(boxes) if boxes else ():
        same = joined.get(members)
        if same is None:
            same = joined[members] = placed.of([boxes[index] for index in members])
        if same[1]:
            found.setdefault(same, []).append(cell)
    return {same: tuple(cells) for same, cells in found.items()}


def _placed(pieces: list[KeptPiece], rows: Sequence[RankRow], extents: Extents, view: View) -> BoxRanks:
    """The boxes of these rows, in a common view, with their ranks; empty ones left out."""
    by_number: dict[int, list[int]] = {}
    for rank, number in rows:
        by_number.setdefault(number, []).append(rank)
    found: BoxRanks = {}
    for number, ranks in by_number.items():
        shard = pieces[number].shard
        for whole, _ in pairs(shard, extents[number]):
            if all(low < high for low, high in whole):
                for box in in_view(whole, shard.whole_view, view):
                    found.setdefault(box, []).extend(ranks)
    return {box: sorted(ranks) for box, ranks in found.items()}
