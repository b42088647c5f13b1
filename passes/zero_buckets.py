"""How ZeRO's elements move: sums to the rank that stores them, parameters to all of their holders."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from ..comm_plan import (
    Combine,
    CommKind,
    CommStep,
    GradBucket,
    GradPiece,
    Interval,
    ParamBucket,
    ParamPiece,
    Piece,
    box_volume,
)
from .grad_sync import Holder, Region
from .resolve_comm import CommResolver
from .zero import Cut, Ownership, Part, Ranks, Trained

Steps = dict[int, list[CommStep]]
"""Per rank the steps that buckets do; a bucket's slot counts from the first of them."""


@dataclass(slots=True)
class ZeroBuckets:
    """Makes the buckets of all ranks, in one global order.

    sources: per parameter and rank the piece that its gradient has there. holders: the same for the
    parameter itself. dtypes: of what is gathered. steps: grow with the buckets that are made.
    """

    ownership: Ownership
    sources: Mapping[str, Mapping[int, Holder]]
    holders: Mapping[str, Mapping[int, Holder]]
    dtypes: Mapping[str, str]
    resolver: CommResolver
    steps: Steps = field(default_factory=dict)
    local: dict[object, dict[int, CommStep]] = field(default_factory=dict)

    def gathers(self, names: Collection[str], alone_too: bool) -> dict[int, list[ParamBucket]]:
        """A bucket per run that has some of these parameters; alone_too: also runs of one holder."""
        result: dict[int, list[ParamBucket]] = {}
        for number, run in enumerate(self.ownership.runs):
            members = [member for member in run.members if member[0] in names]
            if not members or (len(run.holders) == 1 and not alone_too):
                continue
            steps = self._gather(run.holders, run.dtype, members) if len(run.holders) > 1 else {}
            for rank in run.holders:
                pieces = tuple(self._param_piece(name, part, rank) for name, part in members)
                slot = self._add(rank, steps[rank]) if steps else -1
                result.setdefault(rank, []).append(ParamBucket(number, run.holders, run.dtype, pieces, slot))
        if alone_too:
            self._add_empty(names, result)
        return result

    def _add_empty(self, names: Collection[str], made: dict[int, list[ParamBucket]]) -> None:
        """Ranks whose piece of a parameter is empty make it, too: nobody sends it."""
        for number, name in enumerate(sorted(names), len(self.ownership.runs)):
            for rank, holder in self.holders[name].items():
                if prod(holder.view) == 0:
                    piece, dtype = ParamPiece(name, 0, (), (), (0, 0)), self.dtypes[name]
                    made.setdefault(rank, []).append(ParamBucket(number, (rank,), dtype, (piece,), -1))

    def _gather(self, group: Ranks, dtype: str, members: Sequence[tuple[str, int]]) -> dict[int, CommStep]:
        """Each member gives what it stores to all; the flat result has it one member after the other."""
        counts = [
            sum(cuts[rank].size for cuts in map(self.ownership.cuts.__getitem__, members) if rank in cuts)
            for rank in group
        ]
        places = _in_a_row(counts)
        whole, number = (sum(counts),), self.resolver.next_id()
        recvs = _pieces(zip(group, places, strict=True))
        return {
            rank: CommStep(
                number,
                CommKind.ALL_GATHER,
                group,
                src_view=(count,),
                dst_view=whole,
                dst_shape=whole,
                sends=_pieces((peer, (0, count)) for peer in group),
                recvs=recvs,
                note="parameters",
                dtype=dtype,
            )
            for rank, count in zip(group, counts, strict=True)
        }

    def _param_piece(self, name: str, part: int, rank: int) -> ParamPiece:
        whole, cut = self.ownership.parts[name][part], self.ownership.cuts[name, part].get(rank)
        holder = self.holders[name][rank]
        own, row = (holder.local(cut.boxes), cut.row) if cut else ((), (0, 0))
        return ParamPiece(name, whole.size, holder.local(whole.boxes), own, row)

    def reductions(self, trained: Sequence[Trained]) -> dict[int, list[GradBucket]]:
        """Buckets that leave each sum where it is stored: one per dtype, addends and holders."""
        members: dict[tuple[Ranks, Ranks, str], list[tuple[str, Cut]]] = {}
        for each in trained:
            for number, part in enumerate(self.ownership.parts[each.name]):
                for rank, cut in self.ownership.cuts[each.name, number].items():
                    alone = (rank,)
                    key = (alone, alone) if part.has_all else (part.contributors, part.holders)
                    members.setdefault((*key, each.grad_dtype), []).append((each.name, cut))
        result: dict[int, list[GradBucket]] = {}
        ordered = sorted(members.items(), key=lambda item: (len(item[0][1]), item[0]))
        for number, ((givers, _, dtype), cuts) in enumerate(ordered):
            cuts.sort(key=lambda item: item[1].rank)
            for rank, bucket in self._reduction(number, givers, dtype, cuts).items():
                result.setdefault(rank, []).append(bucket)
        return result

    def _reduction(
        self, number: int, givers: Ranks, dtype: str, cuts: Sequence[tuple[str, Cut]]
    ) -> dict[int, GradBucket]:
        """One bucket; what a member keeps lies together. Members with the same piece share what they give."""
        group = tuple(sorted({*givers, *(cut.rank for _, cut in cuts)}))
        steps = self._scatter(group, givers, dtype, cuts) if len(group) > 1 else {}
        places = {rank: [i for i, (_, cut) in enumerate(cuts) if cut.rank == rank] for rank in group}
        given: dict[object, tuple[GradPiece, ...]] = {}
        found = {}
        for rank in group:
            sources = [self.sources[name][rank] for name, _ in cuts] if rank in givers else None
            key = None if sources is None else tuple(source.region for source in sources)
            if key not in given:
                given[key] = _given(cuts, sources)
            pieces = given[key]
            for place in places[rank][:1]:
                end = place + len(places[rank])
                pieces = (*pieces[:place], *self._kept(cuts[place:end], pieces[place:end]), *pieces[end:])
            slot = self._add(rank, steps[rank]) if steps else -1
            found[rank] = GradBucket(number, group, dtype, pieces, slot)
        return found

    def _kept(self, cuts: Sequence[tuple[str, Cut]], pieces: Sequence[GradPiece]) -> Iterator[GradPiece]:
        """The pieces of what a rank keeps, with their places in its rows."""
        for (name, cut), piece in zip(cuts, pieces, strict=True):
            row = self.ownership.rows[name, cut.rank]
            yield replace(piece, dst_view=(row,), dst_boxes=((cut.row,),))

    def _scatter(
        self, group: Ranks, givers: Ranks, dtype: str, cuts: Sequence[tuple[str, Cut]]
    ) -> dict[int, CommStep]:
        """Givers send each member what it keeps, and the member adds up."""
        counts = [sum(cut.size for _, cut in cuts if cut.rank == rank) for rank in group]
        places, number = _in_a_row(counts), self.resolver.next_id()
        sends = _pieces(zip(group, places, strict=True))
        return {
            rank: CommStep(
                number,
                CommKind.REDUCE_SCATTER,
                group,
                Combine.SUM,
                src_view=(sum(counts),) if rank in givers else None,
                dst_view=(count,) if count else None,
                dst_shape=(count,) if count else None,
                sends=sends if rank in givers else (),
                recvs=_pieces((peer, (0, count)) for peer in givers),
                note="gradients",
                dtype=dtype,
            )
            for rank, count in zip(group, counts, strict=True)
        }

    def _add(self, rank: int, step: CommStep) -> int:
        steps = self.steps.setdefault(rank, [])
        steps.append(step)
        return len(steps) - 1

    def local_gather(self, name: str) -> dict[int, CommStep]:
        """Per rank the step from its stored row of a parameter to its local tensor, over all holders.

        Parameters that lie alike and are shared out alike have the same steps.
        """
        parts, dtype = self.ownership.parts[name], self.dtypes[name]
        cuts = [self.ownership.cuts[name, index] for index in range(len(parts))]
        key = (id(parts), dtype, tuple(cut for own in cuts for cut in own.values()))
        if key not in self.local:
            self.local[key] = self._local_gather(name, parts, cuts, dtype)
        return self.local[key]

    def _local_gather(
        self, name: str, parts: Sequence[Part], cuts: Sequence[Mapping[int, Cut]], dtype: str
    ) -> dict[int, CommStep]:
        holders = self.holders[name]
        group, number = tuple(sorted(holders)), self.resolver.next_id()
        sends: dict[int, list[Piece]] = {rank: [] for rank in group}
        recvs: dict[int, list[Piece]] = {rank: [] for rank in group}
        for part, own in zip(parts, cuts, strict=True):
            for rank, cut in own.items():
                row = tuple((place,) for place in _in_a_row(map(box_volume, cut.boxes), cut.row[0]))
                arriving: dict[Region, Piece] = {}
                for peer in part.holders:
                    region = holders[peer].region
                    if region not in arriving:
                        arriving[region] = Piece(rank, holders[peer].local(cut.boxes))
                    sends[rank].append(Piece(peer, row))
                    recvs[peer].append(arriving[region])
        return {
            rank: CommStep(
                number,
                CommKind.ALL_GATHER,
                group,
                src_view=(self.ownership.rows.get((name, rank), 0),),
                dst_view=holders[rank].view,
                dst_shape=holders[rank].view,
                sends=tuple(sends[rank]),
                recvs=tuple(recvs[rank]),
                note="parameter",
                dtype=dtype,
            )
            for rank in group
        }


def _given(cuts: Sequence[tuple[str, Cut]], sources: Sequence[Holder] | None) -> tuple[GradPiece, ...]:
    """What a rank adds to each piece from its own pieces of the gradients; nothing without these."""
    if sources is None:
        return tuple(GradPiece(name, cut.size, None, None, None, None) for name, cut in cuts)
    return tuple(
        GradPiece(name, cut.size, source.view, source.local(cut.boxes), None, None)
        for (name, cut), source in zip(cuts, sources, strict=True)
    )


def _in_a_row(counts: Iterable[int], low: int = 0) -> list[Interval]:
    """Consecutive intervals of these lengths."""
    places: list[Interval] = []
    for count in counts:
        places.append((low, low + count))
        low += count
    return places


def _pieces(parts: Iterable[tuple[int, Interval]]) -> tuple[Piece, ...]:
    """One-dimensional pieces by peer, empty ones left out."""
    return tuple(Piece(peer, ((part,),)) for peer, part in parts if part[0] < part[1])
