"""Is one program another in smaller sizes? Row by row, table by table; differences are named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, cast

from ...base.comm_plan import CommStep, GradBucket, GradPiece, Piece
from ...errors import VerifyError
from ...program.arguments import leaves
from ...program.program import DType, Hole, LocalRow, Program, RankProgram, Segment, Value
from ..lockstep.alike import Likeness
from .size_map import SizeMap

SHOWN = 12
Entry = TypeVar("Entry")
LEFT_OUT: dict[type, frozenset[str]] = {
    CommStep: frozenset({"id", "note"}),
    Piece: frozenset(),
    GradBucket: frozenset({"id", "slot"}),
    GradPiece: frozenset(),
}
"""Fields that may differ."""
SHARD_FIELDS = ("shape", "view", "whole_view", "boxes")
BOXES = frozenset({"boxes", "src_boxes", "dst_boxes"})
"""Fields of intervals, whose lengths correspond as their ends do."""


@dataclass(slots=True)
class Comparison:
    """Two programs. ranks: rank of the twin to that of the whole program."""

    whole: Program
    twin: Program
    ranks: Mapping[int, int]
    sizes: SizeMap
    problems: list[tuple[str, str]] = field(default_factory=list)
    compared: set[tuple[str, str]] = field(default_factory=set)
    entries: dict[tuple[int, int], bool] = field(default_factory=dict)

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
        if not self._same(whole.literals, small.literals):
            self.problems.append((where, "literals differ"))
        for one, other in zip(whole.shards, small.shards, strict=False):
            if not self._same_fields(one, other, SHARD_FIELDS):
                self.problems.append((where, f"shard {one.name} differs"))
        for table in ("comms", "transfers"):
            found = self._differing(where, table, getattr(whole, table), getattr(small, table))
            for slot, step in found:
                self.problems.append((where, f"{table} {slot} differs: {step.kind.value} {step.id}"))
        for _, bucket in self._differing(where, "gradient buckets", whole.grad_buckets, small.grad_buckets):
            self.problems.append((where, f"gradient bucket {bucket.id} differs"))

    def _differing(
        self, where: str, table: str, whole: Sequence[Entry], small: Sequence[Entry]
    ) -> Iterator[tuple[int, Entry]]:
        """Entries of a table, with their slots, that are others in the twin; ranks share many of them."""
        if len(whole) != len(small):
            self.problems.append((where, f"{len(whole)} {table}, {len(small)} in the twin"))
        for slot, (one, other) in enumerate(zip(whole, small, strict=False)):
            key = (id(one), id(other))
            if key not in self.entries:
                self.entries[key] = self._same(one, other)
            if not self.entries[key]:
                yield slot, one

    def _same(self, one: object, other: object) -> bool:
        """Whether two values correspond: their names are equal, their sizes and their ranks go together."""
        if isinstance(one, (Value, Hole, DType)):
            return one == other
        if type(one) in LEFT_OUT and type(one) is type(other):
            names = [item.name for item in fields(cast(Any, one)) if item.name not in LEFT_OUT[type(one)]]
            return self._same_fields(one, other, names)
        if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
            return len(one) == len(other) and all(map(self._same, one, other))
        return self.sizes.same(one, other)

    def _same_fields(self, one: object, other: object, names: Iterable[str]) -> bool:
        return all(self._same_field(name, getattr(one, name), getattr(other, name)) for name in names)

    def _same_field(self, name: str, one: Any, other: Any) -> bool:
        if name == "peer":
            return bool(one == self.ranks[other])
        if name == "group":  # as far as the twin has its ranks
            held = set(self.ranks.values())
            return [rank for rank in one if rank in held] == [self.ranks[rank] for rank in other]
        return self._same(one, other) and (name not in BOXES or self._same(_lengths(one), _lengths(other)))

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
            and self._same(one.args, other.args)
            and all(self._same(one.kwargs[name], other.kwargs[name]) for name in one.kwargs)
        )


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


def _lengths(boxes: object) -> list[int]:
    """Of each interval inside of nested tuples."""
    ends = [end for end in leaves(boxes) if end is not None]
    return [high - low for low, high in zip(ends[::2], ends[1::2], strict=True)]


def _untagged(own: RankProgram) -> list[object]:
    return [replace(item, tag=-1, over=-1) for item in own.instructions]
