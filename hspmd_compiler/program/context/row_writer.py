"""Writing the rows of one member: values, holes where its ranks differ, slots for its part of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...base.comm_plan import CommKind, CommStep, Interval
from ..program import COMM, COMM_START, GETITEM, Argument, Hole, LocalRow, Value
from .exchanges import NOTHING, RowShare, Wire
from .forms import AttentionKind, ContextGroup, ContextMember, ContextRows, Numbering, Operands

ATTENTION, BACKWARD = "hspmd.piece_attention", "hspmd.piece_attention_backward"
CAT, ADD, SLICE = "aten.cat.default", "aten.add.Tensor", "aten.slice.Tensor"
TAKE, PLACE = "hspmd.take", "hspmd.place"
EMPTY = "aten.new_zeros.default"
EXACT = "float64"


@dataclass(frozen=True, slots=True)
class Started:
    """An exchange under way: what was given, and the slot of its step."""

    value: Value
    slot: int


class RowWriter:
    """What has been written for a member of a group so far."""

    def __init__(self, group: ContextGroup, member: int, operands: Operands, numbers: Numbering) -> None:
        self.group = group
        self.number = member
        self.operands = operands
        self.rows: list[LocalRow] = []
        self._numbers = numbers
        self._steps: list[list[CommStep]] = [[] for _ in self.member.ranks]
        self._literals: list[list[Argument]] = [[] for _ in self.member.ranks]

    @property
    def member(self) -> ContextMember:
        """The member whose rows these are."""
        return self.group.members[self.number]

    @property
    def kind(self) -> AttentionKind:
        """What all members compute."""
        return self.group.kind

    def result(self, *outputs: Value) -> ContextRows:
        """All that was written."""
        return ContextRows(
            self.rows, outputs, tuple(map(tuple, self._steps)), tuple(map(tuple, self._literals))
        )

    def row(self, op: str, *args: Argument) -> Value:
        """One operator."""
        out = self._numbers.fresh()
        self.rows.append(LocalRow(out, op, args))
        return out

    def two(self, op: str, *args: Argument) -> tuple[Value, Value]:
        """One operator with two results."""
        both = self.row(op, *args)
        return self.row(GETITEM, both, 0), self.row(GETITEM, both, 1)

    def exchanged(self, value: Value, steps: Mapping[int, CommStep]) -> Value:
        """What the ranks of this member get, in exchange for a value."""
        return self.row(COMM, value, self._slot(steps))

    def started(self, value: Value, steps: Mapping[int, CommStep]) -> Started:
        """An exchange that may be under way while rows behind it are computed."""
        slot = self._slot(steps)
        return Started(self.row(COMM_START, value, slot), slot)

    def finished(self, started: Started) -> Value:
        """What the ranks of this member get by it."""
        return self.row(COMM, started.value, started.slot)

    def nothing(self) -> Value:
        """What a rank gives that only receives."""
        return self.row(EMPTY, self.operands.k, NOTHING)

    def _slot(self, steps: Mapping[int, CommStep]) -> int:
        """A slot for these steps in the table of each rank."""
        slot = self._numbers.slot + len(self._steps[0])
        for rank, own in zip(self.member.ranks, self._steps, strict=True):
            own.append(steps[rank])
        return slot

    def by_rank(self, values: Sequence[Argument]) -> Argument:
        """A literal: of each rank its own, a hole where they differ."""
        if all(value == values[0] for value in values):
            return values[0]
        for own, value in zip(self._literals, values, strict=True):
            own.append(value)
        return Hole(self._numbers.hole + len(self._literals[0]) - 1)

    def joined_kv(self) -> Value:
        """Keys and values side by side: one tensor to move, of heads that are not repeated."""
        kv = self.row(CAT, (self.operands.k, self.operands.v), -1)
        return self.row(TAKE, kv, 1, self._first_alike()) if self.kind.repeated else kv

    def parted_kv(self, value: Value) -> tuple[Value, ...]:
        """Gradients of keys and of values, where these were repeated of the first of heads that are alike."""
        if self.kind.repeated:
            kind, member = self.kind, self.member
            views, shapes = (
                [(kind.samples, high - low, member.tokens, self.kv_width) for low, high in heads]
                for heads in (member.kv_heads, member.heads)
            )
            sizes = self.by_rank([high - low for low, high in member.heads])
            at = self._first_alike()
            value = self.row(PLACE, value, self.by_rank(views), 1, sizes, at, self.by_rank(shapes))
        return self.parts(value, self.kind.width, self.kind.value_width)

    def _first_alike(self) -> Argument:
        """Of each rank, the local heads that are the first of those that are alike."""
        repeat, found = self.kind.repeat, []
        for (low, _), (first, last) in zip(self.member.heads, self.member.kv_heads, strict=True):
            places = [max(low, head * repeat) - low for head in range(first, last)]
            found.append(tuple((place, place + 1) for place in places))
        return self.by_rank(found)

    def parts(self, value: Value, *widths: int) -> tuple[Value, ...]:
        """What was joined along the last dim."""
        ends = [sum(widths[: number + 1]) for number in range(len(widths))]
        slices = zip(ends, widths, strict=True)
        return tuple(self.row(SLICE, value, 3, end - width, end) for end, width in slices)

    def attended(
        self,
        q: Value,
        kv: Value,
        before: tuple[Value, Value] | None,
        runs: tuple[Sequence[Interval], Sequence[Interval]],
        heads: Argument,
        ends: bool,
    ) -> tuple[Value, Value]:
        """(out, lse) of all keys so far. runs: of queries, and of keys."""
        out, lse = before or (None, None)
        return self.two(ATTENTION, q, kv, out, lse, *self._rest(runs, heads, ends))

    def differentiated(
        self,
        given: tuple[Value, Value, Value, Value, Value],
        before: Value | None,
        runs: tuple[Sequence[Interval], Sequence[Interval]],
        heads: Argument,
        ends: bool,
    ) -> tuple[Value, Value]:
        """(gradient of q by all keys so far, of these keys and values). given: grad, q, kv, out, lse."""
        return self.two(BACKWARD, *given, before, *self._rest(runs, heads, ends))

    def _rest(
        self, runs: tuple[Sequence[Interval], Sequence[Interval]], heads: Argument, ends: bool
    ) -> tuple[Argument, ...]:
        kind = self.kind
        given = (self.operands.documents, *(tuple(each) for each in runs), heads)
        return (*given, kind.causal, kind.window, kind.scale, ends)

    def own_heads(self) -> Argument:
        """Which heads the ranks' operands have."""
        return self.head_places(self.member.heads, self.member.kv_heads)

    def head_places(self, heads: Sequence[Interval], kv_heads: Sequence[Interval]) -> Argument:
        """Of each rank (first query head, first key-value head, queries that read one)."""
        pairs = zip(heads, kv_heads, strict=True)
        return self.by_rank([(own[0], kv[0], self.kind.repeat) for own, kv in pairs])

    def wire(self, number: int, kind: CommKind, note: str, rest: tuple[int, ...], dtype: str = "") -> Wire:
        """What steps say of one exchange. number: of the step among those of this attention."""
        name = f"context {note}"
        return Wire(
            self._numbers.step + number, kind, dtype or self.kind.dtype, self.kind.samples, rest, name
        )

    @property
    def kv_width(self) -> int:
        """Of keys and values side by side."""
        return self.kind.width + self.kind.value_width

    @property
    def lse_dtype(self) -> str:
        """The type of log-sum-exps."""
        return EXACT if self.kind.dtype == EXACT else "float32"


def kv_held(member: ContextMember, runs: Sequence[Interval]) -> list[RowShare]:
    """Runs of tokens in the ranks of a member, with the key-value heads of each."""
    pairs = zip(member.ranks, member.kv_heads, strict=True)
    return [RowShare(rank, heads, tuple(runs)) for rank, heads in pairs]


def q_held(member: ContextMember) -> list[RowShare]:
    """A member's own tokens, with the query heads of each rank."""
    pairs = zip(member.ranks, member.heads, strict=True)
    return [RowShare(rank, heads, member.runs) for rank, heads in pairs]


def all_runs(group: ContextGroup) -> tuple[Interval, ...]:
    """The runs of all members in the order of the row."""
    return tuple(sorted(run for member in group.members for run in member.runs))
