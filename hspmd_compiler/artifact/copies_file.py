"""Copies of pieces of a state as a file, and back, checked."""

from __future__ import annotations

from ..base.codec import decode, encode
from ..program.state.state_copies import StateCopies
from .check_switch import check_switch_plan
from .json_text import parse, to_text

COPIES_DEPTH = 5


def copies_text(copies: StateCopies) -> str:
    """What a file of them holds."""
    return to_text(encode(copies), COPIES_DEPTH)


def copies_from(content: bytes, file: str) -> StateCopies:
    """The copies that a file holds; ArtifactError where it does not hang together."""
    copies = decode(StateCopies, parse(content, file), file)
    ranks = range(len(copies.shards))
    for plan in (copies.make, copies.each_step, copies.buffers):
        check_switch_plan(plan, file, ranks, ranks)
    return copies
