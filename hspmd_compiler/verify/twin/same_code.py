"""Is one program another in smaller sizes? Row by row, table by table; differences are named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...base.comm_plan import Box, CommStep, GradBucket, Piece
from ...errors import VerifyError
from ...program.program import DType, Hole, LocalRow, Program, RankProgram, Segment, Value
from ..lockstep.alike import Likeness
from .size_map import SizeMap

SHOWN = 12


@dataclass(slots=True)
class Comparison:
    """Two programs. ranks: rank of the twin to that of the whole program."""

    whole: Program
    twin: Program
    ranks: Mapping[int, int]
    sizes: SizeMap
    problems: list[tuple[str, str]] = field(default_factory=list)
    compared: set[tuple[str, str]] = field(default_factory=set)
    steps: dict[tuple[int, int], bool] = field(default_factory=dict)

    def run(self) -> None:
        """A VerifyError that names what differs, unless nothing does."""
        by_rank = {own.rank: own for own in self.whole.ranks}
        for small in self.twin.ranks:
            self._rank(by_rank[self.ranks[small.rank]], small)
        if self.problems:
            left = len(self.problems) - SHOWN
            raise VerifyError(
                "the twin is another program, not the same one in smaller sizes",
                details=[*self.problems[:SHOWN], *([("...", f"{left} more")] if left > 0 else [])],
                rule="rows, operators, communication and instructions are equal, and sizes correspond",
                fix="nothing is proved by a twin here; verify a smaller model with `--values`",
            )

    def _rank(self, whole: RankProgram, small: RankProgram) -> None:
        where = f"rank {whole.rank}"
        self._classes(whole.class_name, small.class_name)
        plain = [
            ("instructions", _untagged(whole), _untagged(small)),
            ("rows", [b - a for a, b in whole.rows], [b - a for a, b in small.rows]),
            ("names of shards", [s.name for s in whole.shards], [s.name for s in small.shards]),
        ]
        self.problems += [(where, f"{name} differ") for name, one, other in plain if one != other]
        if not self.sizes.same(tuple(whole.literals), tuple(small.literals)):
            self.problems.append((where, "literals differ"))
        for table in ("comms", "transfers"):
            self._tables(where, table, getattr(whole, table), getattr(small, table))
        for one, other in zip(whole.shards, small.shards, strict=False):
            dims = ((one.shape, other.shape), (one.whole_view, other.whole_view), (one.view, other.view))
            pairs = zip(one.boxes, other.boxes, strict=False)
            boxes = len(one.boxes) == len(other.boxes) and all(self._boxes(a, b) for a, b in pairs)
            if not boxes or not all(self.sizes.same(a, b) for a, b in dims):
                self.problems.append((where, f"shard {one.name} differs"))
        self._buckets(where, whole.grad_buckets, small.grad_buckets)

    def _tables(self, where: str, table: str, whole: Sequence[CommStep], small: Sequence[CommStep]) -> None:
        if len(whole) != len(small):
            self.problems.append((where, f"{len(whole)} {table}, {len(small)} in the twin"))
        for slot, (one, other) in enumerate(zip(whole, small, strict=False)):
            key = (id(one), id(other))
            if key not in self.steps:
                self.steps[key] = self._step(one, other)
            if not self.steps[key]:
                self.problems.append((where, f"{table} {slot} differs: {one.kind.value} {one.id}"))

    def _step(self, one: CommStep, other: CommStep) -> bool:
        same = (one.kind, one.combine, one.dtype) == (other.kind, other.combine, other.dtype)
        views = (
            (one.src_view, other.src_view),
            (one.dst_view, other.dst_view),
            (one.dst_shape, other.dst_shape),
        )
        return (
            same
            and self._group(one.group, other.group)
            and all(self.sizes.same(a, b) for a, b in views)
            and self._pieces(one.sends, other.sends)
            and self._pieces(one.recvs, other.recvs)
        )

    def _group(self, whole: tuple[int, ...], small: tuple[int, ...]) -> bool:
        """The whole group, as far as the twin has its ranks."""
        held = set(self.ranks.values())
        return [rank for rank in whole if rank in held] == [self.ranks[rank] for rank in small]

    def _pieces(self, whole: Sequence[Piece], small: Sequence[Piece]) -> bool:
        return len(whole) == len(small) and all(
            one.peer == self.ranks[other.peer] and self._boxes(one.boxes, other.boxes)
            for one, other in zip(whole, small, strict=True)
        )

    def _boxes(self, whole: Sequence[Box] | None, small: Sequence[Box] | None) -> bool:
        if whole is None or small is None:
            return whole is small
        return self.sizes.same(tuple(whole), tuple(small)) and self.sizes.same(
            tuple(high - low for box in whole for low, high in box),
            tuple(high - low for box in small for low, high in box),
        )

    def _buckets(self, where: str, whole: Sequence[GradBucket], small: Sequence[GradBucket]) -> None:
        if len(whole) != len(small):
            self.problems.append((where, f"{len(whole)} gradient buckets, {len(small)} in the twin"))
        for one, other in zip(whole, small, strict=False):
            same = one.dtype == other.dtype and self._group(one.group, other.group)
            same = same and len(one.pieces) == len(other.pieces)
            for a, b in zip(one.pieces, other.pieces, strict=False):
                numbers = ((a.length, b.length), (a.src_view, b.src_view), (a.dst_view, b.dst_view))
                same = same and a.param == b.param and all(self.sizes.same(x, y) for x, y in numbers)
                same = same and self._boxes(a.src_boxes, b.src_boxes)
                same = same and self._boxes(a.dst_boxes, b.dst_boxes)
            if not same:
                self.problems.append((where, f"gradient bucket {one.id} differs"))

    def _classes(self, whole: str, small: str) -> None:
        if (whole, small) in self.compared:
            return
        self.compared.add((whole, small))
        one, other = self.whole.classes[whole].segments, self.twin.classes[small].segments
        if len(one) != len(other):
            self.problems.append((f"class {whole}", f"{len(one)} segments, {len(other)} in the twin"))
        for a, b in zip(one, other, strict=False):
            self.problems += [(f"class {whole}", text) for text in self._segment(a, b)]

    def _segment(self, whole: Segment, small: Segment) -> Iterator[str]:
        if (whole.inputs, whole.outputs) != (small.inputs, small.outputs):
            yield f"{whole.name}: inputs or outputs differ"
        if len(whole.rows) != len(small.rows):
            yield f"{whole.name}: {len(whole.rows)} rows, {len(small.rows)} in the twin"
        for one, other in zip(whole.rows, small.rows, strict=False):
            if not self._row(one, other):
                yield f"{whole.name}: v{one.out.id} = {one.op}{one.args}, in the twin {other.op}{other.args}"

    def _row(self, one: LocalRow, other: LocalRow) -> bool:
        return (
            (one.out, one.op, one.logical) == (other.out, other.op, other.logical)
            and one.kwargs.keys() == other.kwargs.keys()
            and self._argument(one.args, other.args)
            and all(self._argument(one.kwargs[name], other.kwargs[name]) for name in one.kwargs)
        )

    def _argument(self, one: object, other: object) -> bool:
        if isinstance(one, (Value, Hole, DType)):
            return one == other
        if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
            return len(one) == len(other) and all(map(self._argument, one, other))
        return self.sizes.same(one, other)


def check_copies(program: Program, kept: Mapping[int, int]) -> None:
    """Pipelines that a twin leaves out are relabelings of those that it keeps.

    kept: pipeline to the one that stands for it. A VerifyError where a rank asks for anything else.
    """
    places = {(own.pipeline, own.stage, own.coordinate): own for own in program.ranks}
    at = {own.rank: (own.pipeline, own.stage, own.coordinate) for own in program.ranks}
    likeness = Likeness()
    odd = []
    for own in program.ranks:
        first = places[kept[own.pipeline], own.stage, own.coordinate]
        moved = {rank: places[kept[p], s, c].rank for rank, (p, s, c) in at.items() if p == own.pipeline}
        if likeness.of(own) != likeness.of(first) or not _relabeled(own, first, moved):
            odd.append((f"rank {own.rank}", f"is not as rank {first.rank} in its pipeline"))
    if odd:
        raise VerifyError(
            "pipelines of one kind run different programs",
            details=odd[:SHOWN],
            rule="pipelines with the same stages, layers and micro-batches differ in ranks only",
            fix="nothing is proved by a twin here; verify a smaller model with `--values`",
        )


def _relabeled(own: RankProgram, first: RankProgram, moved: Mapping[int, int]) -> bool:
    """Steps inside the pipeline are those of the other one, with its ranks."""
    for table in ("comms", "transfers"):
        for one, other in zip(getattr(own, table), getattr(first, table), strict=True):
            inside = moved.keys() >= set(one.group)
            if inside and _moved(one, moved) != replace(other, id=0, note=""):
                return False
    return True


def _moved(step: CommStep, moved: Mapping[int, int]) -> CommStep:
    def pieces(held: tuple[Piece, ...]) -> tuple[Piece, ...]:
        return tuple(replace(piece, peer=moved[piece.peer]) for piece in held)

    group = tuple(sorted(moved[rank] for rank in step.group))
    return replace(step, id=0, note="", group=group, sends=pieces(step.sends), recvs=pieces(step.recvs))


def _untagged(own: RankProgram) -> list[object]:
    return [replace(item, tag=-1) for item in own.instructions]
