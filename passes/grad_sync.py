"""Gradient reduction over unequal pipelines: elements with equal contributors and holders share a group."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from math import prod

from ..annotations.intervals import Intervals, union, within
from ..annotations.layout import Axis, Coordinate, Layout
from ..annotations.layout_rows import held_rows
from ..annotations.refine import boxes_of
from ..comm_plan import Box, GradBucket, GradPiece, Interval, box_volume

Region = tuple[Intervals, ...]


def region(layout: Layout, rank: int) -> Region:
    """What a rank of a stage holds, per dim; the batch axis does not cut it."""
    return held_rows(layout, Coordinate(rank, 0))


@dataclass(frozen=True, slots=True)
class Holder:
    """A rank's piece of a tensor."""

    rank: int
    region: Region

    @property
    def view(self) -> tuple[int, ...]:
        """Shape of the local tensor."""
        return tuple(sum(high - low for low, high in held) for held in self.region)

    def local(self, boxes: Iterable[Box]) -> tuple[Box, ...]:
        """Boxes of the whole tensor in the rank's local tensor."""
        return tuple(tuple(map(_placed, self.region, box)) for box in boxes)


def _placed(held: Intervals, part: Interval) -> Interval:
    """An interval inside a held one, in the local tensor."""
    if len(held) == 1:
        start = held[0][0]
        return part[0] - start, part[1] - start
    return within(held, (part,))[0]


@dataclass(frozen=True, slots=True)
class Term:
    """One addend of a gradient: ranks of a stage, each an addend itself, or all consistent copies."""

    holders: tuple[Holder, ...]
    addends: bool


@dataclass(frozen=True, slots=True)
class GradLayout:
    """Everything one parameter's reduction depends on."""

    shape: tuple[int, ...]
    terms: tuple[Term, ...]
    holders: tuple[Holder, ...]


@cache
def make_term(layout: Layout, ranks: tuple[int, ...]) -> Term:
    """The addend that a stage's gradient of this layout is."""
    cut = layout.cut(ranks=True)
    addends = Axis.TENSOR in layout.partial or (cut is not None and cut[1].contrib)
    return Term(make_holders(layout, ranks), addends)


@cache
def make_holders(layout: Layout, ranks: tuple[int, ...]) -> tuple[Holder, ...]:
    """The pieces of a stage's ranks."""
    return tuple(Holder(rank, region(layout, index)) for index, rank in enumerate(ranks))


@dataclass(frozen=True, slots=True)
class Atom:
    """Boxes whose elements have the same contributors and the same holders."""

    contributors: tuple[int, ...]
    needers: tuple[int, ...]
    boxes: tuple[Box, ...]

    @property
    def group(self) -> tuple[int, ...]:
        """Ranks that take part in the reduction."""
        return tuple(sorted({*self.contributors, *self.needers}))


def atoms(layout: GradLayout) -> list[Atom]:
    """Partition a parameter; local copies come out as atoms of a single rank."""
    places = Places(layout)
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Box]] = {}
    for cell in grid(layout.shape, places.regions):
        for key in places.parties(cell):
            found.setdefault(key, []).append(cell)
    return [Atom(key[0], key[1], merged(cells)) for key, cells in found.items()]


def grid(shape: tuple[int, ...], regions: Collection[Region]) -> Iterable[Box]:
    """Cells between all bounds of all pieces, row-major."""
    parts: list[Intervals] = []
    for dim, size in enumerate(shape):
        bounds = {0, size} | {bound for held in regions for interval in held[dim] for bound in interval}
        ordered = sorted(bounds)
        parts.append(tuple(pairwise(ordered)))
    return product(*parts)


def has_cell(region: Region, cell: Box) -> bool:
    """Whether a piece has a cell of the common grid."""
    return all(
        any(first <= low and high <= last for first, last in held)
        for held, (low, high) in zip(region, cell, strict=True)
    )


class Places:
    """Who has which of the distinct pieces of a parameter: many ranks, few pieces."""

    def __init__(self, layout: GradLayout) -> None:
        self.regions: dict[Region, int] = {}
        self._holders = self._numbered(layout.holders)
        self._terms = [(term.addends, self._numbered(term.holders)) for term in layout.terms]

    def _numbered(self, holders: Iterable[Holder]) -> list[tuple[int, int]]:
        """(rank, number of its piece), in order."""
        return [
            (holder.rank, self.regions.setdefault(holder.region, len(self.regions))) for holder in holders
        ]

    def parties(self, cell: Box) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(contributors, needers) of a cell; several where each needer has the only addend itself."""
        inside = [has_cell(region, cell) for region in self.regions]
        needers = tuple(sorted(rank for rank, piece in self._holders if inside[piece]))
        needing = set(needers)
        contributors: list[int] = []
        for addends, holders in self._terms:
            having = [rank for rank, piece in holders if inside[piece]]
            if not addends:
                having = [rank for rank in having if rank in needing] or having
                if len(self._terms) == 1 and needing <= set(having):
                    return [((rank,), (rank,)) for rank in needers]
                having = having[:1]
            contributors += having
        return [(tuple(sorted(contributors)), needers)]


def merged(cells: list[Box]) -> tuple[Box, ...]:
    """Cells joined along the dims in which they lie side by side."""
    boxes = cells
    for dim in range(len(cells[0]) if cells else 0):
        rows: dict[Box, list[tuple[int, int]]] = {}
        for box in boxes:
            rows.setdefault((*box[:dim], (0, 0), *box[dim + 1 :]), []).append(box[dim])
        boxes = [(*key[:dim], part, *key[dim + 1 :]) for key, parts in rows.items() for part in union(parts)]
    return tuple(sorted(boxes))


def buckets(
    layouts: dict[str, GradLayout], dtypes: dict[str, str], first: int = 0
) -> dict[int, list[GradBucket]]:
    """Gradient buckets per rank, numbered from `first`: one flat all-reduce per group and dtype, in one
    global order.

    Parameters whose layouts are one object share their atoms and boxes, ranks with the same pieces a bucket.
    """
    members: dict[tuple[tuple[int, ...], str], list[tuple[str, _Reduction, Atom]]] = {}
    known: dict[int, _Reduction] = {}
    for name, layout in layouts.items():
        if id(layout) not in known:
            known[id(layout)] = _Reduction(layout)
        reduction = known[id(layout)]
        for atom in reduction.atoms:
            members.setdefault((atom.group, dtypes[name]), []).append((name, reduction, atom))
    result: dict[int, list[GradBucket]] = {}
    ordered = sorted(members.items(), key=lambda item: (len(item[0][0]), item[0]))
    for number, ((group, dtype), parts) in enumerate(ordered, first):
        distinct = {id(atom): (reduction, atom) for _, reduction, atom in parts}.values()
        made: dict[object, GradBucket] = {}
        for rank in group:
            key = tuple(reduction.part(atom, rank) for reduction, atom in distinct)
            if key not in made:
                pieces = tuple(reduction.piece(atom, rank, name) for name, reduction, atom in parts)
                made[key] = GradBucket(number, group, dtype, pieces)
            result.setdefault(rank, []).append(made[key])
    return result


class _Reduction:
    """The atoms of one layout, and each rank's boxes of them, found once."""

    def __init__(self, layout: GradLayout) -> None:
        self.atoms = atoms(layout)
        self._sources = {holder.rank: holder for term in layout.terms for holder in term.holders}
        self._targets = {holder.rank: holder for holder in layout.holders}
        self._contributors = {id(atom): frozenset(atom.contributors) for atom in self.atoms}
        self._needers = {id(atom): frozenset(atom.needers) for atom in self.atoms}

    def part(self, atom: Atom, rank: int) -> tuple[Region | None, Region | None]:
        """What a rank gives of an atom and what it takes: the same for ranks with the same pieces."""
        gives = rank in self._contributors[id(atom)]
        takes = rank in self._needers[id(atom)]
        return (
            self._sources[rank].region if gives else None,
            self._targets[rank].region if takes else None,
        )

    def piece(self, atom: Atom, rank: int, name: str) -> GradPiece:
        """A rank's part in an atom of a parameter."""
        gives, takes = self.part(atom, rank)
        source = None if gives is None else self._sources[rank]
        target = None if takes is None else self._targets[rank]
        return GradPiece(
            name,
            sum(box_volume(box) for box in atom.boxes),
            source.view if source else None,
            source.local(atom.boxes) if source else None,
            target.view if target else None,
            target.local(atom.boxes) if target else None,
        )


def shard_boxes(holder: Holder) -> tuple[tuple[Box, Box], ...]:
    """(box of the whole, box of the local tensor) pairs of a piece."""
    boxes = boxes_of(list(holder.region))
    return tuple(zip(boxes, holder.local(boxes), strict=True))


def owned_boxes(holders: Sequence[Holder]) -> dict[int, tuple[tuple[Box, Box], ...]]:
    """Per rank the elements whose first holder it is, so that each element has one owner."""
    if not holders:
        return {}
    shape = tuple(
        max((high for h in holders for _, high in h.region[d]), default=0)
        for d in range(len(holders[0].region))
    )
    owned: dict[int, list[Box]] = {holder.rank: [] for holder in holders}
    ordered = sorted(holders, key=lambda holder: holder.rank)
    firsts: dict[Region, Holder] = {}
    for holder in ordered:
        firsts.setdefault(holder.region, holder)
    for cell in grid(shape, firsts):
        owner = next((holder for held, holder in firsts.items() if has_cell(held, cell)), None)
        if owner is not None:
            owned[owner.rank].append(cell)
    by_rank = {holder.rank: holder for holder in ordered}
    return {
        rank: tuple(zip(joined, by_rank[rank].local(joined), strict=True))
        for rank, cells in owned.items()
        for joined in (merged(cells),)
    }


def elements(boxes: Iterable[tuple[Box, Box]]) -> int:
    """Elements in pairs of boxes."""
    return sum(prod(high - low for low, high in box) for box, _ in boxes)
