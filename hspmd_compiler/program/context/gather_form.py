"""GATHER: keys and values of all that a member's queries may see come at once, gradients go back summed."""

from __future__ import annotations

from collections.abc import Mapping

from ...base.comm_plan import CommKind, CommStep, Interval
from .exchanges import RowShare, added, copied
from .forms import ContextGroup, ContextMember, ContextRows
from .row_writer import RowWriter, all_runs, kv_held


def gather_forward(writer: RowWriter) -> ContextRows:
    """Queries of the member over the keys of all members before it, or of all."""
    runs = (writer.member.runs, _seen(writer.group, writer.member))
    kv = writer.exchanged(writer.joined_kv(), _gathering(writer))
    out, lse = writer.attended(writer.operands.q, kv, None, runs, writer.own_heads(), True)
    return writer.result(out, lse)


def gather_backward(writer: RowWriter) -> ContextRows:
    """Keys and values are gathered again: they are not kept from the forward pass."""
    of = writer.operands
    assert of.grad is not None and of.out is not None and of.lse is not None, "of a backward pass"
    runs = (writer.member.runs, _seen(writer.group, writer.member))
    kv = writer.exchanged(writer.joined_kv(), _gathering(writer))
    given = (of.grad, of.q, kv, of.out, of.lse)
    dq, dkv = writer.differentiated(given, None, runs, writer.own_heads(), True)
    own = [held for member in writer.group.members for held in kv_held(member, member.runs)]
    wire = writer.wire(1, CommKind.ALL_TO_ALL, "gradients of keys and values", (writer.kv_width,))
    total = writer.exchanged(dkv, added(wire, _all_seen(writer.group), own))
    return writer.result(dq, *writer.parted_kv(total))


def _gathering(writer: RowWriter) -> Mapping[int, CommStep]:
    """Every member's tokens, to all that see them."""
    own = [held for member in writer.group.members for held in kv_held(member, member.runs)]
    wire = writer.wire(0, CommKind.ALL_TO_ALL, "keys and values", (writer.kv_width,))
    return copied(wire, own, _all_seen(writer.group))


def _all_seen(group: ContextGroup) -> list[RowShare]:
    return [held for member in group.members for held in kv_held(member, _seen(group, member))]


def _seen(group: ContextGroup, member: ContextMember) -> tuple[Interval, ...]:
    """Runs of the row up to the member's last; all where queries see later tokens."""
    runs = all_runs(group)
    return runs[: runs.index(member.runs[-1]) + 1] if group.kind.causal else runs
