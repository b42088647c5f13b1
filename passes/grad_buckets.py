"""Gradient reduction over unequal pipelines: elements with equal contributors and holders share a group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

from ..base.comm_plan import Box, GradBucket, GradPiece, Interval, box_volume
from ..layout.intervals import Intervals, union, within
from ..layout.layout import Axis, Coordinate, Layout
from ..layout.layout_rows import held_rows
from ..layout.refine import boxes_of
from .resolve_annotations.cells import products_of
from .resolve_annotations.sides import DeviceSet, devices_of, members, rows_of

Region = tuple[Intervals, ...]
Parties = tuple[tuple[int, ...], tuple[int, ...]]
"""Ranks that have an addend of some elements, and ranks that need their sum."""


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
    found: dict[Parties, list[Box]] = {}
    for parties, boxes in parties_of(layout):
        for key in parties:
            found.setdefault(key, []).extend(boxes)
    return [Atom(*key, merged(boxes)) for key, boxes in found.items()]


def parties_of(layout: GradLayout) -> Iterator[tuple[list[Parties], list[Box]]]:
    """(contributors, needers) of all elements; several where each needer has the only addend itself."""
    gives = [holder for term in layout.terms for holder in term.holders]
    of_term = [devices_of(holder.rank for holder in term.holders) for term in layout.terms]
    for (givers, needers), boxes in _cells(layout.shape, gives, layout.holders).items():
        contributors = 0
        for term, devices in zip(layout.terms, of_term, strict=True):
            having = givers & devices
            if not term.addends:
                having = having & needers or having
                if len(layout.terms) == 1 and not needers & ~having:
                    yield [((rank,), (rank,)) for rank in members(needers)], boxes
                    break
                having = next((1 << each.rank for each in term.holders if having >> each.rank & 1), 0)
            contributors |= having
        else:
            yield [(members(contributors), members(needers))], boxes


def _cells(
    shape: tuple[int, ...], givers: Sequence[Holder], needers: Sequence[Holder]
) -> dict[tuple[DeviceSet, DeviceSet], list[Box]]:
    """Boxes of a whole tensor by those that have them, in the order of its elements."""
    everywhere = tuple(((0, size),) for size in shape)
    # It has all on both sides, so that what others lack is a cell, too.
    nobody = 1 << 1 + max((holder.rank for holder in (*givers, *needers)), default=-1)
    rows, everyone = [], []
    for side in (givers, needers):
        pieces: dict[Region, DeviceSet] = {everywhere: nobody}
        for holder in side:
            pieces[holder.region] = pieces.get(holder.region, 0) | 1 << holder.rank
        rows.append(rows_of(pieces.items(), len(shape)))
        everyone.append(nobody | devices_of(holder.rank for holder in side))
    found: dict[tuple[DeviceSet, DeviceSet], list[Box]] = {}
    for each in products_of(rows[0], rows[1], (everyone[0], everyone[1])):
        found.setdefault((each.holders & ~nobody, each.needers & ~nobody), []).extend(boxes_of(each.block))
    return found


def is_covered(shape: tuple[int, ...], pieces: Sequence[Region]) -> bool:
    """Whether every element is in a piece."""
    holders = [Holder(place, piece) for place, piece in enumerate(pieces)]
    return all(givers for givers, _ in _cells(shape, holders, ()))


def merged(cells: list[Box]) -> tuple[Box, ...]:
    """Cells joined along the dims in which they lie side by side."""
    boxes = cells
    for dim in range(len(cells[0]) if cells else 0):
        rows: dict[Box, list[tuple[int, int]]] = {}
        for box in boxes:
            rows.setdefault((*box[:dim], (0, 0), *box[dim + 1 :]), []).append(box[dim])
        boxes = [(*key[:dim], part, *key[dim + 1 :]) for key, parts in rows.items() for part in union(parts)]
    return tuple(sorted(boxes))


LATE = 1 << 30
"""Stands for the wave of what is in none: it comes last."""
BucketKey = tuple[int, tuple[int, ...], str]
"""A wave, a group, and an element type."""


def reductions_of(layouts: Mapping[str, GradLayout]) -> dict[int, LayoutReduction]:
    """How each distinct layout is reduced, by its identity."""
    return {number: LayoutReduction(it) for number, it in {id(it): it for it in layouts.values()}.items()}


def buckets(
    layouts: Mapping[str, GradLayout],
    dtypes: Mapping[str, str],
    first: int = 0,
    waves: Mapping[str, int] | None = None,
    known: Mapping[int, LayoutReduction] | None = None,
) -> dict[int, list[GradBucket]]:
    """Gradient buckets per rank, numbered from `first`: one flat all-reduce per wave, group and dtype, in one
    global order.

    waves: of parameters whose sums start before the end, in the order in which buckets hold them. known: what
    `reductions_of` gives. Parameters whose layouts are one object share their atoms and boxes, ranks with
    the same pieces a bucket.
    """
    members: dict[BucketKey, list[tuple[str, LayoutReduction, Atom]]] = {}
    known, waves = known or reductions_of(layouts), waves or {}
    for name in (*waves, *(name for name in layouts if name not in waves)):
        reduction = known[id(layouts[name])]
        for atom in reduction.atoms:
            wave = waves.get(name, LATE) if len(atom.group) > 1 else LATE
            members.setdefault((wave, atom.group, dtypes[name]), []).append((name, reduction, atom))
    result: dict[int, list[GradBucket]] = {}
    ordered = sorted(members.items(), key=lambda item: (item[0][0], len(item[0][1]), item[0]))
    for number, ((wave, group, dtype), parts) in enumerate(ordered, first):
        distinct = {id(atom): (reduction, atom) for _, reduction, atom in parts}.values()
        made: dict[object, GradBucket] = {}
        for rank in group:
            parts_of = (reduction.part(atom, rank) for reduction, atom in distinct)
            key = tuple((held and held.region) for both in parts_of for held in both)
            if key not in made:
                pieces = tuple(reduction.piece(atom, rank, name) for name, reduction, atom in parts)
                made[key] = GradBucket(number, group, dtype, pieces, wave=-1 if wave == LATE else wave)
            result.setdefault(rank, []).append(made[key])
    return result


class LayoutReduction:
    """The atoms of one layout, and each rank's boxes of them, found once."""

    def __init__(self, layout: GradLayout) -> None:
        self.atoms = atoms(layout)
        self._sources = {holder.rank: holder for term in layout.terms for holder in term.holders}
        self._targets = {holder.rank: holder for holder in layout.holders}
        self._contributors = {id(atom): frozenset(atom.contributors) for atom in self.atoms}
        self._needers = {id(atom): frozenset(atom.needers) for atom in self.atoms}

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """Ranks that exchange something, per atom."""
        return [atom.group for atom in self.atoms if len(atom.group) > 1]

    @property
    def local_size(self) -> int:
        """Elements of the largest local gradient."""
        return max((prod(holder.view) for holder in self._sources.values()), default=0)

    def part(self, atom: Atom, rank: int) -> tuple[Holder | None, Holder | None]:
        """What a rank has of a parameter, where it gives something of an atom, and where it takes it."""
        return (
            self._sources[rank] if rank in self._contributors[id(atom)] else None,
            self._targets[rank] if rank in self._needers[id(atom)] else None,
        )

    def piece(self, atom: Atom, rank: int, name: str) -> GradPiece:
        """A rank's part in an atom of a parameter."""
        source, target = self.part(atom, rank)
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
        max((high for holder in holders for _, high in holder.region[dim]), default=0)
        for dim in range(len(holders[0].region))
    )
    by_rank = {holder.rank: holder for holder in sorted(holders, key=lambda holder: holder.rank)}
    owned: dict[int, list[Box]] = {rank: [] for rank in by_rank}
    for (having, _), boxes in _cells(shape, holders, ()).items():
        if having:
            owned[members(having)[0]] += boxes
    return {
        rank: tuple(zip(joined, by_rank[rank].local(joined), strict=True))
        for rank, cells in owned.items()
        for joined in (merged(cells),)
    }
