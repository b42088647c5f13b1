"""Each communication marker becomes, per rank, one step: an all-reduce or boxes that move."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..annotations.intervals import Intervals, Sets, intersect, subtract, union
from ..annotations.layout import Axis, Coordinate, Layout
from ..annotations.refine import Refined, elementary, local_boxes, refine
from ..comm_plan import Combine, CommKind, CommStep, Piece, box_volume
from ..errors import InternalError
from ..graph.annotated import CommMarker
from .resolve_layouts import on_ranks, rounds


@dataclass(frozen=True, slots=True)
class _Request:
    """What one plan depends on; equal requests share their steps."""

    source: Layout
    target: Layout
    combine: Combine
    source_ranks: tuple[int, ...]
    target_ranks: tuple[int, ...]
    batch: int
    dtype: str


@dataclass(slots=True)
class CommResolver:
    """Resolves markers and numbers the steps; `steps` are made once for equal requests."""

    made: dict[object, dict[int, CommStep]] = field(default_factory=dict)
    planned: dict[_Request, tuple[dict[int, CommStep], ...]] = field(default_factory=dict)
    count: int = 0

    def steps(
        self, marker: CommMarker, ranks: tuple[int, ...], batch: int, dtype: str
    ) -> tuple[dict[int, CommStep], ...]:
        """The step of each rank of a stage for a conversion inside it, at one micro-batch, in each round."""
        if not marker.planned:
            return (self.collective(marker, ranks, batch, dtype),)
        return self._rounds(
            _Request(marker.source, marker.target, marker.combine, ranks, ranks, batch, dtype)
        )

    def collective(
        self, marker: CommMarker, ranks: tuple[int, ...], batch: int, dtype: str
    ) -> dict[int, CommStep]:
        """The one step of a conversion that is not planned."""
        if marker.source == marker.target or _is_all_reduce(marker):
            return self._all_reduce(ranks, marker.combine, dtype)
        request = _Request(marker.source, marker.target, marker.combine, ranks, ranks, batch, dtype)
        return self._exchange(request, _kind(marker))

    def transfer(
        self,
        marker: CommMarker,
        source_ranks: tuple[int, ...],
        target_ranks: tuple[int, ...],
        batch: int,
        dtype: str,
    ) -> dict[int, CommStep]:
        """The step of each rank of two stages for a value that crosses between them."""
        request = _Request(
            marker.source, marker.target, marker.combine, source_ranks, target_ranks, batch, dtype
        )
        return self._exchange(request, CommKind.SEND_RECV)

    def reduce(self, ranks: tuple[int, ...], dtype: str) -> dict[int, CommStep]:
        """A sum of whole values over ranks."""
        return self._all_reduce(ranks, Combine.SUM, dtype)

    def _all_reduce(self, ranks: tuple[int, ...], combine: Combine, dtype: str) -> dict[int, CommStep]:
        group = tuple(sorted(ranks))
        key = (group, combine, dtype)
        if key not in self.made:
            step = CommStep(self.next_id(), CommKind.ALL_REDUCE, group, combine, dtype=dtype)
            self.made[key] = dict.fromkeys(group, step)
        return self.made[key]

    def _exchange(self, request: _Request, kind: CommKind) -> dict[int, CommStep]:
        if request not in self.made:
            self.made[request] = _plan(request, kind, self.next_id())
        return self.made[request]

    def _rounds(self, request: _Request) -> tuple[dict[int, CommStep], ...]:
        if request not in self.planned:
            ranks = request.source_ranks
            found = rounds(request.source, request.target, len(ranks), request.batch, request.dtype)
            numbers = sorted({step.id for steps in found for step in steps.values()})
            ids = {number: self.next_id() for number in numbers}
            self.planned[request] = tuple(on_ranks(steps, ranks, ids) for steps in found)
        return self.planned[request]

    def next_id(self) -> int:
        """The id of a new step."""
        self.count += 1
        return self.count - 1


def round_count(marker: CommMarker, ranks: int, batch: int, dtype: torch.dtype) -> int:
    """How many steps each rank has for a communication."""
    if not marker.planned:
        return 1
    name = str(dtype).removeprefix("torch.")
    return len(rounds(marker.source, marker.target, ranks, batch, name))


def _is_all_reduce(marker: CommMarker) -> bool:
    """A pending sum of the whole value that everybody needs whole."""
    return Axis.TENSOR in marker.source.partial and marker.target.cut(ranks=True) is None


def _kind(marker: CommMarker) -> CommKind:
    if marker.combine is Combine.SUM:
        return CommKind.REDUCE_SCATTER if Axis.TENSOR in marker.source.partial else CommKind.ALL_TO_ALL
    return CommKind.ALL_GATHER if marker.target.cut(ranks=True) is None else CommKind.ALL_TO_ALL


def _plan(request: _Request, kind: CommKind, number: int) -> dict[int, CommStep]:
    """Steps of all ranks for an exchange by boxes."""
    refined = refine(request.source, request.target)
    if refined is None:
        raise InternalError(
            f"no common factors of {request.source} and {request.target}",
            fix="report this model and strategy",
        )
    routes = _routes(request, refined)
    group = tuple(sorted({*request.source_ranks, *request.target_ranks}))
    head = CommStep(number, kind, group, request.combine, dtype=request.dtype)
    return {rank: _step(rank, request, refined, routes, head) for rank in group}


Route = tuple[int, int, dict[int, Intervals]]


def _routes(request: _Request, refined: Refined) -> list[Route]:
    """(source index, target index, wanted intervals by factor) of everything that moves or is kept."""
    load = [0] * len(request.source_ranks)
    routes: list[Route] = []
    for j in range(len(request.target_ranks)):
        if request.combine is Combine.SUM:
            routes += _addends(request, refined, j)
        else:
            routes += _copies(request, refined, j, load)
    return routes


def _held(refined: Refined, source: bool, ranks: int) -> tuple[int | None, Sets]:
    """The factor that ranks cut on one side, and what each of them holds of it."""
    index = refined.cut_index(source)
    if index is None:
        return None, ((),) * ranks
    factor = refined.pairs[index][0 if source else 1]
    return index, factor.sets or ()


def _addends(request: _Request, refined: Refined, j: int) -> list[Route]:
    """Every holder adds its share of what rank j needs."""
    a, have = _held(refined, True, len(request.source_ranks))
    b, need = _held(refined, False, len(request.target_ranks))
    routes = []
    for i in range(len(request.source_ranks)):
        wanted: dict[int, Intervals] = {}
        if a is not None:
            wanted[a] = have[i]
        if b is not None:
            wanted[b] = intersect(have[i], need[j]) if a == b else need[j]
        routes.append((i, j, wanted))
    return routes


def _copies(request: _Request, refined: Refined, j: int, load: list[int]) -> list[Route]:
    """Rank j keeps what it has; the rest comes from the holder that has sent least so far."""
    a, have = _held(refined, True, len(request.source_ranks))
    b, need = _held(refined, False, len(request.target_ranks))
    own = _index(request.source_ranks, request.target_ranks[j])
    if a is None:
        sender = own if own is not None else load.index(min(load))
        load[sender] += sender != own
        return [(sender, j, {} if b is None else {b: need[j]})]
    size = refined.pairs[a][0].size
    missing: Intervals = need[j] if a == b else (((0, size),) if size else ())
    parts: dict[int, Intervals] = {}
    if own is not None:
        parts[own] = intersect(missing, have[own])
        missing = subtract(missing, parts[own])
    for piece in elementary((*have, missing)):
        if intersect((piece,), missing):
            owners = [i for i, held in enumerate(have) if intersect(held, (piece,))]
            sender = min(owners, key=lambda i: (load[i], i))
            load[sender] += piece[1] - piece[0]
            parts[sender] = union((*parts.get(sender, ()), piece))
    extra = {} if b is None or a == b else {b: need[j]}
    return [(i, j, {a: part, **extra}) for i, part in sorted(parts.items()) if part]


def _index(ranks: tuple[int, ...], rank: int) -> int | None:
    return ranks.index(rank) if rank in ranks else None


def _step(rank: int, request: _Request, refined: Refined, routes: list[Route], step: CommStep) -> CommStep:
    i, j = _index(request.source_ranks, rank), _index(request.target_ranks, rank)
    sends: list[Piece] = []
    recvs: list[Piece] = []
    for source, target, wanted in routes:
        if source == i:
            at = Coordinate(source, request.batch)
            boxes = local_boxes(refined, at, True, wanted)
            _append(sends, request.target_ranks[target], boxes)
        if target == j:
            at = Coordinate(target, request.batch)
            boxes = local_boxes(refined, at, False, wanted)
            _append(recvs, request.source_ranks[source], boxes)
    here, there = Coordinate(i or 0, request.batch), Coordinate(j or 0, request.batch)
    return CommStep(
        step.id,
        step.kind,
        step.group,
        step.combine,
        src_view=None if i is None else refined.view(here, source=True),
        dst_view=None if j is None else refined.view(there, source=False),
        dst_shape=None if j is None else request.target.local_shape(there),
        sends=tuple(sends),
        recvs=tuple(recvs),
        dtype=step.dtype,
    )


def _append(pieces: list[Piece], peer: int, boxes: tuple[tuple[tuple[int, int], ...], ...]) -> None:
    kept = tuple(box for box in boxes if box_volume(box))
    if kept:
        pieces.append(Piece(peer, kept))
