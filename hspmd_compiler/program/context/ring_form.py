"""RING: keys and values go from member to member; each attends to what has come while the next is under way.

Under a causal mask and a contiguous cut a block of keys goes to the members behind its own only, and what
each of them finds of its gradient goes straight home: the ring would not close. Else blocks go all around,
and their gradients behind them, each member adding its part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...base.comm_plan import CommKind, CommStep, Interval
from ..program import Value
from .exchanges import RowShare, added, copied
from .forms import ContextGroup, ContextRows
from .row_writer import ADD, RowWriter, Started, kv_held


@dataclass(frozen=True, slots=True)
class Ring:
    """Which block of keys is where: block b is that of member b, hop h the h-th time that blocks move on."""

    group: ContextGroup

    @property
    def size(self) -> int:
        """Members."""
        return len(self.group.members)

    @property
    def closes(self) -> bool:
        """Whether blocks go all around."""
        return not self.group.kind.causal or any(len(member.runs) > 1 for member in self.group.members)

    def block(self, member: int, hop: int) -> int | None:
        """What a member holds after a hop; None where nothing has reached it."""
        return (member - hop) % self.size if self.closes or member >= hop else None

    def hops(self, member: int) -> int:
        """How many blocks a member attends to."""
        return self.size if self.closes else member + 1

    def held(self, member: int, hop: int) -> list[RowShare]:
        """What a member's ranks hold after a hop."""
        block = self.block(member, hop)
        return [] if block is None else kv_held(self.group.members[member], self.runs(block))

    def runs(self, block: int) -> tuple[Interval, ...]:
        """The tokens of a block."""
        return self.group.members[block].runs

    def receivers(self, hop: int) -> Iterator[int]:
        """Members to which something moves in a hop, 1 and up."""
        return (member for member in range(self.size) if self.block(member, hop) is not None)


def ring_forward(writer: RowWriter) -> ContextRows:
    """Merge what each block of keys gives, the member's own first."""
    ring, heads = Ring(writer.group), writer.own_heads()
    held, found = writer.joined_kv(), None
    for hop in range(ring.hops(writer.number)):
        coming = _start_kv(writer, ring, hop + 1, held)
        runs = (writer.member.runs, ring.runs((writer.number - hop) % ring.size))
        ends = hop == ring.hops(writer.number) - 1
        found = writer.attended(writer.operands.q, held, found, runs, heads, ends)
        held = held if coming is None else writer.finished(coming)
    assert found is not None, "a member attends to its own keys"
    return writer.result(*found)


def ring_backward(writer: RowWriter) -> ContextRows:
    """Blocks move as in the forward pass; gradients of a hop are under way while the next is computed."""
    of, ring, heads = writer.operands, Ring(writer.group), writer.own_heads()
    assert of.grad is not None and of.out is not None and of.lse is not None, "of a backward pass"
    held, dq, own = writer.joined_kv(), None, ring.hops(writer.number)
    home = _Home(writer, ring)
    for hop in range(ring.size):
        coming = _start_kv(writer, ring, hop + 1, held) if hop < own else None
        part = None
        if hop < own:
            runs = (writer.member.runs, ring.runs((writer.number - hop) % ring.size))
            given = (of.grad, of.q, held, of.out, of.lse)
            dq, part = writer.differentiated(given, dq, runs, heads, hop == own - 1)
        home.found(hop, part)
        held = held if coming is None else writer.finished(coming)
    assert dq is not None, "a member attends to its own keys"
    return writer.result(dq, *writer.parted_kv(home.total()))


def _start_kv(writer: RowWriter, ring: Ring, hop: int, held: Value) -> Started | None:
    """The member's part of a hop: it passes on what it holds, and gets the next block, or nothing."""
    receivers = list(ring.receivers(hop)) if hop < ring.size else []
    senders = [(member - 1) % ring.size for member in receivers]
    if writer.number not in (*senders, *receivers):
        return None
    wire = writer.wire(hop - 1, CommKind.SEND_RECV, "keys and values", (writer.kv_width,))
    sources = [each for member in sorted({*senders, *receivers}) for each in ring.held(member, hop - 1)]
    targets = [each for member in receivers for each in ring.held(member, hop)]
    return writer.started(held, copied(wire, sources, targets))


class _Home:
    """Gradients of a member's own keys and values: its own part, and those that come home."""

    def __init__(self, writer: RowWriter, ring: Ring) -> None:
        self._writer = writer
        self._ring = ring
        self._total: Value | None = None
        self._under_way: tuple[int, Started] | None = None
        self._passed: Value | None = None

    def found(self, hop: int, part: Value | None) -> None:
        """What the member found of the block that it held after a hop; it travels on."""
        self._arrived()
        if hop == 0:
            self._total = part
            return
        if self._passed is not None and part is not None:
            part = self._writer.row(ADD, self._passed, part)
            self._passed = None
        steps = self._steps(hop)
        if self._writer.member.ranks[0] in steps:
            value = self._writer.nothing() if part is None else part
            self._under_way = hop, self._writer.started(value, steps)

    def total(self) -> Value:
        """All parts, the last having come home."""
        self._arrived()
        assert self._total is not None, "the member's own part is found first"
        return self._total

    def _arrived(self) -> None:
        """Wait for what is under way: a block's gradient to be passed on, or one that is at home."""
        if self._under_way is None:
            return
        hop, started = self._under_way
        self._under_way = None
        value = self._writer.finished(started)
        if self._ring.closes and hop < self._ring.size - 1:
            self._passed = value
        elif self._ring.closes or self._writer.number + hop < self._ring.size:
            assert self._total is not None, "the member's own part is found first"
            self._total = self._writer.row(ADD, self._total, value)

    def _steps(self, hop: int) -> Mapping[int, CommStep]:
        ring, number = self._ring, self._ring.size - 1 + hop - 1
        wire = self._writer.wire(
            number, CommKind.SEND_RECV, "gradients of keys and values", (self._writer.kv_width,)
        )
        sources = [each for member in range(ring.size) for each in ring.held(member, hop)]
        if ring.closes:
            targets = [each for member in range(ring.size) for each in ring.held(member, hop + 1)]
        else:
            homes = range(ring.size - hop)
            targets = [each for member in homes for each in ring.held(member, 0)]
        return added(wire, sources, targets)
