"""Rows of the reference's communication data: both annotations, its answer, and what that answer moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

import torch
from torch import Tensor

from hspmd_compiler.annotations import Annotation, DeviceGroup
from hspmd_compiler.base.comm_plan import Box, CommKind, Traffic, box_volume
from hspmd_compiler.passes.resolve_annotations.price import FlatCost

from ...annotations.pieces import pieces_of, whole_tensor
from ...annotations.reference_unions import reference, states_of, union_of

SHAPE = (96, 48)
ELEMENT = 4
FLAT = FlatCost()
BATCHES = {"P2P", "BSR"}
LOCAL, GATHERS, SUMS = {"UNUSED", "SCATTER", "COMM_SPLIT"}, {"ALL_GATHER"}, {"ALL_REDUCE", "REDUCE_SCATTER"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the reference lets one rank do: operators in order, and the groups of each part of its tensor."""

    ops: tuple[str, ...]
    group: tuple[int, ...] = ()
    parts: tuple[tuple[tuple[int, ...], ...], ...] = ()

    @property
    def groups(self) -> set[tuple[int, ...]]:
        """All groups of its collectives."""
        own = {tuple(sorted(group)) for groups in self.parts for group in groups}
        return own | ({tuple(sorted(self.group))} if self.group else set())


@dataclass(frozen=True, slots=True)
class Row:
    """One pair. answers: per rank, none where the reference raises an error."""

    name: str
    source: Annotation
    target: Annotation
    answers: Mapping[int, Answer]

    def seconds(self) -> float:
        """The least that the reference's answer costs, by the flat cost model."""
        own = max((self._seconds_of(rank, answer) for rank, answer in self.answers.items()), default=0.0)
        return max(own, _exchange(self._batch()))

    def _seconds_of(self, rank: int, answer: Answer) -> float:
        return sum(self._operator(rank, op, answer) for op in answer.ops if op not in (*LOCAL, *BATCHES))

    def _operator(self, rank: int, op: str, answer: Answer) -> float:
        size = prod(self.source.local_shape(SHAPE, rank)) * ELEMENT
        if op.startswith("SPLIT_"):
            block = size // len(answer.parts)
            return sum(_collective(op[6:], group, block) for groups in answer.parts for group in groups)
        return _collective(op, answer.group, size)

    def _batch(self) -> dict[tuple[int, int], int]:
        """Bytes per (sender, receiver) of its sends and receives: cell by cell, the owner that sent least."""
        batched = {rank for rank, answer in self.answers.items() if {*answer.ops} & BATCHES}
        before, after = self.source.regions(SHAPE), self.target.regions(SHAPE)
        addends, wanted = self.source.addends(), self.target.addends()
        sent: Counter[int] = Counter()
        volumes: Counter[tuple[int, int]] = Counter()
        for cell in _cells([box for boxes in (*before.values(), *after.values()) for box in boxes]):
            owners = [rank for rank, boxes in before.items() if _inside(cell, boxes)]
            for needer in (rank for rank in sorted(batched) if _inside(cell, after.get(rank, ()))):
                able = [rank for rank in owners if addends[rank].index == wanted[needer].index]
                if needer not in able:
                    sender = min(able, key=lambda rank: (sent[rank], rank))
                    sent[sender] += box_volume(cell)
                    volumes[sender, needer] += box_volume(cell) * ELEMENT
        return volumes

    def is_right(self) -> bool:
        """Whether local slices and collectives inside one group, as answered, give the target's pieces.

        Other operators are taken to be right.
        """
        known = {"", *LOCAL, *GATHERS, *SUMS}
        if not {op for answer in self.answers.values() for op in answer.ops} <= known:
            return True
        pieces = {rank: self._spread(rank, piece) for rank, piece in pieces_of(self.source, whole()).items()}
        after = {rank: self._after(rank, answer, pieces) for rank, answer in self.answers.items()}
        return self._is_value(after)

    def _spread(self, rank: int, piece: Tensor) -> Tensor:
        """A piece at its place in the whole; NaN elsewhere."""
        found = torch.full(SHAPE, torch.nan, dtype=torch.float64)
        rows, columns = (
            torch.tensor([at for low, high in held for at in range(low, high)])
            for held in self.source.intervals(SHAPE)[rank]
        )
        found[rows[:, None], columns] = piece
        return found

    def _after(self, rank: int, answer: Answer, pieces: Mapping[int, Tensor]) -> Tensor:
        """What a rank can know of the value after its operator."""
        (op,) = answer.ops
        if op in SUMS:
            return torch.stack([pieces[member] for member in answer.group]).sum(0)
        found = pieces[rank]
        for member in answer.group if op in GATHERS else ():
            found = torch.where(found.isnan(), pieces[member], found)
        return found

    def _is_value(self, after: Mapping[int, Tensor]) -> bool:
        """One holder of each addend: together they are the whole, everywhere."""
        total = torch.zeros(SHAPE, dtype=torch.float64)
        addends = self.target.addends()
        seen: dict[int, Tensor] = {}
        for rank, boxes in self.target.regions(SHAPE).items():
            own = seen.setdefault(addends[rank].index, torch.full(SHAPE, torch.nan, dtype=torch.float64))
            for box in boxes:
                index = tuple(slice(low, high) for low, high in box)
                if after[rank][index].isnan().any():
                    return False
                own[index] = after[rank][index]
        for own in seen.values():
            total += own.nan_to_num()
        return bool(torch.allclose(total, whole(), atol=1e-12))


def _cells(boxes: Sequence[Box]) -> Iterator[Box]:
    """The grid of all bounds."""
    bounds = [sorted({end for box in boxes for end in box[dim]}) for dim in range(len(SHAPE))]
    return product(*(tuple(pairwise(ends)) for ends in bounds))


def _inside(cell: Box, boxes: Sequence[Box]) -> bool:
    return any(
        all(low <= a and b <= high for (a, b), (low, high) in zip(cell, box, strict=True)) for box in boxes
    )


def whole() -> Tensor:
    return whole_tensor(SHAPE)


def _collective(op: str, group: Sequence[int], size: int) -> float:
    """One collective on pieces of so many bytes."""
    ranks = tuple(group)
    if op == "ALL_REDUCE":
        return FLAT.comm_s([Traffic(CommKind.ALL_REDUCE, ranks, {}, size)])
    moved = size // len(group) if op == "REDUCE_SCATTER" else size
    return _exchange({(a, b): moved for a in group for b in group if a != b})


def _exchange(volumes: Mapping[tuple[int, int], int]) -> float:
    ranks = tuple({rank for pair in volumes for rank in pair})
    return FLAT.comm_s([Traffic(CommKind.ALL_TO_ALL, ranks, volumes)])


def rows_of_one_group() -> Iterator[Row]:
    """Pairs of one group each."""
    for row in reference("golden_comm_hsize1.json")["rows"]:  # type: ignore[attr-defined]
        source, target = (
            Annotation((DeviceGroup(tuple(row[f"{side}_dg"])),), (states_of(row[side]),))
            for side in ("src", "dst")
        )
        (op,), groups = row["op"], row["groups"]
        ranks = sorted({*source.devices, *target.devices})
        answers = {rank: Answer((op,), tuple(groups.get(str(rank), ()))) for rank in ranks}
        yield Row(row["id"], source, target, {} if op == "ERROR" else answers)


def rows_of_unions() -> Iterator[Row]:
    """Pairs of unions."""
    for row in reference("golden_comm_hetero.json")["rows"]:  # type: ignore[attr-defined]
        source, target = (union_of(row[side], SHAPE[0]) for side in ("src", "dst"))
        given = row["per_rank"]
        if any("error" in answer for answer in given.values()):
            yield Row(row["id"], source, target, {})
            continue
        answers = {
            int(rank): Answer(
                tuple(answer["ops"]),
                tuple(answer.get("group", ())),
                tuple(tuple(map(tuple, groups)) for groups in answer.get("split_groups", ())),
            )
            for rank, answer in given.items()
        }
        yield Row(row["id"], source, target, answers)
