"""ZeRO's collectives: a reduce-scatter brings sums to who stores them, an all-gather parameters to all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from math import prod

from ...annotations.split import consecutive
from ...base.comm_plan import (
    Box,
    Combine,
    CommKind,
    CommStep,
    GatherForm,
    GradBucket,
    GradPiece,
    ParamBucket,
    ParamPiece,
    Piece,
    box_volume,
)
from ...layout.intervals import shifted
from ..grad_buckets import Holder, Region
from ..resolve_comm import CommResolver
from .gather_groups import GatherGroup
from .zero import Cut, FlatRun, Ownership, ParamPart, Ranks, Trained

PADDING = 16
"""The part of a gather that may be padding, without prices: one in so many."""
BucketSteps = dict[int, list[CommStep]]
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
    steps: BucketSteps = field(default_factory=dict)
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
        cuts = [self.ownership.cuts[member] for member in members]
        counts = tuple([sum(own[rank].size for own in cuts if rank in own) for rank in group])
        whole, number = (sum(counts),), self.resolver.next_id()
        recvs = _in_turn(group, counts)
        steps = {
            rank: CommStep(
                number,
                CommKind.ALL_GATHER,
                group,
                src_view=(size,),
                dst_view=whole,
                dst_shape=whole,
                sends=_whole(group, size),
                recvs=recvs,
                note="parameters",
                dtype=dtype,
            )
            for rank, size in zip(group, counts, strict=True)
        }
        formed = self.resolver.formed(steps)
        return formed if self.resolver.cost is not None else _padded(formed, counts)

    def _param_piece(self, name: str, part: int, rank: int) -> ParamPiece:
        whole, cut = self.ownership.parts[name][part], self.ownership.cuts[name, part].get(rank)
        holder = self.holders[name][rank]
        own, row = (holder.local(cut.boxes), cut.row) if cut else ((), (0, 0))
        return ParamPiece(name, whole.size, holder.local(whole.boxes), own, row)

    def reductions(self, trained: Sequence[Trained]) -> dict[int, list[GradBucket]]:
        """Buckets that leave each sum where it is stored: one per run and addends.

        What a rank has the whole sum of itself is one bucket of its own, behind the others.
        """
        dtypes = {each.name: each.grad_dtype for each in trained}
        result: dict[int, list[GradBucket]] = {}
        alone: dict[tuple[int, str], list[GradPiece]] = {}
        numbers = count()
        for run in self.ownership.runs:
            for (givers, has_all, dtype), members in self._by_givers(run, dtypes).items():
                group = self._group(givers, members)
                if has_all or len(group) == 1:
                    for rank, pieces in self._alone(members).items():
                        alone.setdefault((rank, dtype), []).extend(pieces)
                    continue
                for rank, bucket in self._reduction(next(numbers), group, givers, dtype, members).items():
                    result.setdefault(rank, []).append(bucket)
        for (rank, dtype), found in sorted(alone.items()):
            result.setdefault(rank, []).append(GradBucket(next(numbers), (rank,), dtype, tuple(found)))
        return result

    def _by_givers(
        self, run: FlatRun, dtypes: Mapping[str, str]
    ) -> dict[tuple[Ranks, bool, str], list[tuple[str, int]]]:
        """The members of a run that are reduced, by who gives addends, and the type of these."""
        found: dict[tuple[Ranks, bool, str], list[tuple[str, int]]] = {}
        for name, number in run.members:
            if name in dtypes:
                part = self.ownership.parts[name][number]
                found.setdefault((part.contributors, part.has_all, dtypes[name]), []).append((name, number))
        return found

    def _group(self, givers: Ranks, members: Sequence[tuple[str, int]]) -> Ranks:
        """Givers, and those who keep some of it; a short run leaves some holders without any."""
        return tuple(sorted({*givers, *(rank for member in members for rank in self.ownership.cuts[member])}))

    def _alone(self, members: Sequence[tuple[str, int]]) -> dict[int, list[GradPiece]]:
        """What each rank keeps of sums that it has itself."""
        found: dict[int, list[GradPiece]] = {}
        for name, number in members:
            for rank, cut in self.ownership.cuts[name, number].items():
                given = _given(name, self.sources[name][rank], cut.boxes)
                row = self.ownership.rows[name, rank]
                piece = replace(given, dst_view=(row,), dst_boxes=((cut.row,),))
                found.setdefault(rank, []).append(piece)
        return found

    def _reduction(
        self, number: int, group: Ranks, givers: Ranks, dtype: str, members: Sequence[tuple[str, int]]
    ) -> dict[int, GradBucket]:
        """One bucket. A rank's share of the run is one interval of it, so that givers lay out whole parts.

        Givers with the same pieces of all members share what they give.
        """
        kept = self._kept(members)
        counts = tuple([sum(piece.length for piece in kept.get(rank, ())) for rank in group])
        steps = self._scatter(group, givers, dtype, counts)
        given: dict[object, tuple[GradPiece, ...]] = {}
        found = {}
        for rank in group:
            pieces: tuple[GradPiece, ...] = ()
            if rank in givers:
                key = tuple(self.sources[name][rank].region for name, _ in members)
                if key not in given:
                    given[key] = tuple(
                        _given(name, self.sources[name][rank], self.ownership.parts[name][part].boxes)
                        for name, part in members
                    )
                pieces = given[key]
            slot = self._add(rank, steps[rank])
            found[rank] = GradBucket(number, group, dtype, (*pieces, *kept.get(rank, ())), slot)
        return found

    def _kept(self, members: Sequence[tuple[str, int]]) -> dict[int, list[GradPiece]]:
        """Per rank the pieces that it keeps, with their places in its rows."""
        found: dict[int, list[GradPiece]] = {}
        for name, number in members:
            for rank, cut in self.ownership.cuts[name, number].items():
                row = self.ownership.rows[name, rank]
                piece = GradPiece(name, cut.size, None, None, (row,), ((cut.row,),))
                found.setdefault(rank, []).append(piece)
        return found

    def _scatter(
        self, group: Ranks, givers: Ranks, dtype: str, counts: tuple[int, ...]
    ) -> dict[int, CommStep]:
        """Givers send each member what it keeps, and the member adds up."""
        number, whole = self.resolver.next_id(), (sum(counts),)
        sends = _in_turn(group, counts)
        steps = {
            rank: CommStep(
                number,
                CommKind.REDUCE_SCATTER,
                group,
                Combine.SUM,
                src_view=whole if rank in givers else None,
                dst_view=(size,) if size else None,
                dst_shape=(size,) if size else None,
                sends=sends if rank in givers else (),
                recvs=_whole(givers, size),
                note="gradients",
                dtype=dtype,
            )
            for rank, size in zip(group, counts, strict=True)
        }
        return self.resolver.formed(steps)

    def _add(self, rank: int, step: CommStep) -> int:
        steps = self.steps.setdefault(rank, [])
        steps.append(step)
        return len(steps) - 1

    def local_gather(self, group: GatherGroup) -> dict[int, CommStep]:
        """Per rank the step from its stored rows of a group to its local tensors, one behind the other."""
        if not group.is_flat:
            return self._alone_gather(*group.names)
        if group not in self.local:
            names = {*group.names}
            steps: dict[int, CommStep] = {}
            for run in self.ownership.runs:
                if run.members[0][0] in names:
                    steps |= self._gather(run.holders, run.dtype, run.members)
            self.local[group] = steps
        return self.local[group]

    def _alone_gather(self, name: str) -> dict[int, CommStep]:
        """Of one parameter, over all holders. Those that lie alike and are shared out alike have the same
        steps."""
        parts, dtype = self.ownership.parts[name], self.dtypes[name]
        cuts = [self.ownership.cuts[name, index] for index in range(len(parts))]
        key = (id(parts), dtype, tuple(cut for own in cuts for cut in own.values()))
        if key not in self.local:
            self.local[key] = self._local_gather(name, parts, cuts, dtype)
        return self.local[key]

    def _local_gather(
        self, name: str, parts: Sequence[ParamPart], cuts: Sequence[Mapping[int, Cut]], dtype: str
    ) -> dict[int, CommStep]:
        holders = self.holders[name]
        group, number = tuple(sorted(holders)), self.resolver.next_id()
        sends: dict[int, list[Piece]] = {rank: [] for rank in group}
        recvs: dict[int, list[Piece]] = {rank: [] for rank in group}
        for part, own in zip(parts, cuts, strict=True):
            for rank, cut in own.items():
                row = tuple(
                    (place,) for place in shifted(consecutive([*map(box_volume, cut.boxes)]), cut.row[0])
                )
                arriving: dict[Region, Piece] = {}
                for peer in part.holders:
                    region = holders[peer].region
                    if region not in arriving:
                        arriving[region] = Piece(rank, holders[peer].local(cut.boxes))
                    sends[rank].append(Piece(peer, row))
                    recvs[peer].append(arriving[region])
        steps = {
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
        return self.resolver.formed(steps)


def _given(name: str, source: Holder, boxes: Sequence[Box]) -> GradPiece:
    """Elements that a rank gives of its own gradient."""
    return GradPiece(name, sum(map(box_volume, boxes)), source.view, source.local(boxes), None, None)


def _padded(steps: dict[int, CommStep], counts: tuple[int, ...]) -> dict[int, CommStep]:
    """Pieces that are almost equal as one all-gather: exact ones would be packed once for each member."""
    is_exact = len({*counts}) == 1 or max(counts) * len(counts) * PADDING > sum(counts) * (PADDING + 1)
    return (
        steps if is_exact else {rank: replace(step, form=GatherForm.PADDED) for rank, step in steps.items()}
    )


@lru_cache(maxsize=4096)
def _in_turn(peers: Ranks, counts: tuple[int, ...]) -> tuple[Piece, ...]:
    """A flat tensor, each peer's part behind that of the one before; empty ones left out."""
    places = consecutive(counts)
    return tuple(
        Piece(peer, ((part,),)) for peer, part in zip(peers, places, strict=True) if part[0] < part[1]
    )


@lru_cache(maxsize=4096)
def _whole(peers: Ranks, size: int) -> tuple[Piece, ...]:
    """All of a flat tensor for each peer; nothing of an empty one."""
    return tuple(Piece(peer, (((0, size),),)) for peer in peers) if size else ()
