"""HEADS: for attention each rank of the group has some of the heads and all tokens, by all-to-all exchanges.

Any number of heads goes to a rank, also none. Ranks whose queries read the same key-value head both have it.
"""

from __future__ import annotations

from itertools import pairwise

from ...base.comm_plan import CommKind, Interval
from ..program import Value
from .exchanges import RowShare, added, copied
from .forms import ContextGroup, ContextRows
from .row_writer import CAT, RowWriter, all_runs, kv_held, q_held


class SpreadHeads:
    """Who has which heads during attention, and what moves there and back."""

    def __init__(self, writer: RowWriter) -> None:
        group = writer.group
        self._writer = writer
        self.runs = all_runs(group)
        heads = dict(zip(group.ranks, spread_of(group), strict=True))
        kv_heads = {rank: _read(own, group.kind.repeat) for rank, own in heads.items()}
        self._own_q = [held for member in group.members for held in q_held(member)]
        self._own_kv = [held for member in group.members for held in kv_held(member, member.runs)]
        self._q = [RowShare(rank, own, self.runs) for rank, own in heads.items()]
        self._kv = [RowShare(rank, own, self.runs) for rank, own in kv_heads.items()]
        ranks = writer.member.ranks
        self.heads = writer.head_places([heads[rank] for rank in ranks], [kv_heads[rank] for rank in ranks])

    def there(self, number: int, value: Value, note: str, *rest: int, dtype: str = "") -> Value:
        """What is by query heads, to who has these."""
        wire = self._writer.wire(number, CommKind.ALL_TO_ALL, note, rest, dtype)
        return self._writer.exchanged(value, copied(wire, self._own_q, self._q))

    def back(self, number: int, value: Value, note: str, *rest: int, dtype: str = "") -> Value:
        """The opposite."""
        wire = self._writer.wire(number, CommKind.ALL_TO_ALL, note, rest, dtype)
        return self._writer.exchanged(value, copied(wire, self._q, self._own_q))

    def kv_there(self, number: int) -> Value:
        """Keys and values."""
        wire = self._writer.wire(number, CommKind.ALL_TO_ALL, "keys and values", (self._writer.kv_width,))
        return self._writer.exchanged(self._writer.joined_kv(), copied(wire, self._own_kv, self._kv))

    def kv_back(self, number: int, value: Value) -> Value:
        """Their gradients, summed."""
        note = "gradients of keys and values"
        wire = self._writer.wire(number, CommKind.ALL_TO_ALL, note, (self._writer.kv_width,))
        return self._writer.exchanged(value, added(wire, self._kv, self._own_kv))


def heads_forward(writer: RowWriter) -> ContextRows:
    """Whole attention of some heads."""
    spread, kind = SpreadHeads(writer), writer.kind
    q = spread.there(0, writer.operands.q, "queries", kind.width)
    kv = spread.kv_there(1)
    out, lse = writer.attended(q, kv, None, (spread.runs, spread.runs), spread.heads, True)
    own = spread.back(2, out, "output", kind.value_width)
    return writer.result(own, spread.back(3, lse, "log-sum-exp", dtype=writer.lse_dtype))


def heads_backward(writer: RowWriter) -> ContextRows:
    """What the forward pass moved, and what it gave, moves again; gradients come back."""
    of, spread, kind = writer.operands, SpreadHeads(writer), writer.kind
    assert of.grad is not None and of.out is not None and of.lse is not None, "of a backward pass"
    widths = (kind.value_width, kind.width, kind.value_width)
    joined = writer.row(CAT, (of.grad, of.q, of.out), -1)
    moved = spread.there(0, joined, "queries, output and its gradient", sum(widths))
    kv = spread.kv_there(1)
    lse = spread.there(2, of.lse, "log-sum-exp", dtype=writer.lse_dtype)
    grad, q, out = writer.parts(moved, *widths)
    runs = (spread.runs, spread.runs)
    dq, dkv = writer.differentiated((grad, q, kv, out, lse), None, runs, spread.heads, True)
    own = spread.back(3, dq, "gradient of queries", kind.width)
    return writer.result(own, *writer.parted_kv(spread.kv_back(4, dkv)))


def spread_of(group: ContextGroup) -> tuple[Interval, ...]:
    """Query heads of each rank of the group during attention."""
    if group.spread:
        return group.spread
    heads = max(high for member in group.members for _, high in member.heads)
    unit = group.kind.repeat if heads // group.kind.repeat >= len(group.ranks) else 1
    units, ranks = heads // unit, len(group.ranks)
    ends = [units * place // ranks * unit for place in range(ranks + 1)]
    return tuple(pairwise(ends))


def _read(heads: Interval, repeat: int) -> Interval:
    """The key-value heads that query heads read."""
    low, high = heads
    return (low // repeat, -(-high // repeat)) if low < high else (low // repeat, low // repeat)
