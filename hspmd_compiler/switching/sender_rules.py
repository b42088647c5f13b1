"""Who sends a slice, by rule: HSPMD's six choose one holder of each slice for each rank that lacks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class SenderRule(Enum):
    """LEAST_LOAD is ours (`least_load`): slices are cut anywhere, and ranks relay what entered their node.

    MIN_IDX: the holder of the smallest rank. FCFS: the first. ROUND_ROBIN: each in turn for the ranks that
    lack one slice. MULTI_NODE_ROUND_ROBIN: likewise, passing over those of other nodes where one is of the
    same. GREEDY: who exchanged the fewest slices with the rank, in either direction. NEW_GREEDY: of the
    holders on its node the one that sent the fewest elements inside the node so far; of others, the fewest to
    other nodes.
    """

    MIN_IDX = "MIN_IDX"
    FCFS = "FCFS"
    ROUND_ROBIN = "ROUND_ROBIN"
    MULTI_NODE_ROUND_ROBIN = "MULTI_NODE_ROUND_ROBIN"
    GREEDY = "GREEDY"
    NEW_GREEDY = "NEW_GREEDY"
    LEAST_LOAD = "LEAST_LOAD"


@dataclass(slots=True)
class SliceSenders:
    """The senders of slices by a rule, one slice after the other; what rules count goes on from slice to
    slice.

    nodes: of each rank.
    """

    rule: SenderRule
    nodes: Sequence[int] | Mapping[int, int]
    _exchanged: dict[frozenset[int], int] = field(default_factory=dict)
    _sent_inside: dict[int, int] = field(default_factory=dict)
    _sent_across: dict[int, int] = field(default_factory=dict)

    def choose(self, elements: int, holders: Sequence[int], needers: Sequence[int]) -> dict[int, int]:
        """The sender for each needer that does not hold the slice itself. holders: at least one, in order."""
        turn = 0
        found: dict[int, int] = {}
        for needer in needers:
            if needer in holders:
                continue
            if self.rule in (SenderRule.ROUND_ROBIN, SenderRule.MULTI_NODE_ROUND_ROBIN):
                found[needer] = self._in_turn(holders, needer, turn)
                turn += 1
            else:
                found[needer] = self._by_count(elements, holders, needer)
        return found

    def _in_turn(self, holders: Sequence[int], needer: int, turn: int) -> int:
        """The holder whose turn it is; over nodes the next one that is near, else the last that is tried."""
        tries = 1 if self.rule is SenderRule.ROUND_ROBIN else len(holders)
        tried = [holders[(turn + index) % len(holders)] for index in range(tries)]
        return next((one for one in tried if self.nodes[one] == self.nodes[needer]), tried[-1])

    def _by_count(self, elements: int, holders: Sequence[int], needer: int) -> int:
        if self.rule is SenderRule.MIN_IDX:
            return min(holders)
        if self.rule is SenderRule.FCFS:
            return holders[0]
        if self.rule is SenderRule.GREEDY:
            sender = min(holders, key=lambda holder: self._exchanged.get(frozenset((holder, needer)), 0))
            pair = frozenset((sender, needer))
            self._exchanged[pair] = self._exchanged.get(pair, 0) + 1
            return sender
        return self._least_sent(elements, holders, needer)

    def _least_sent(self, elements: int, holders: Sequence[int], needer: int) -> int:
        near = [holder for holder in holders if self.nodes[holder] == self.nodes[needer]]
        sent = self._sent_inside if near else self._sent_across
        sender = min(near or holders, key=lambda holder: sent.get(holder, 0))
        sent[sender] = sent.get(sender, 0) + elements
        return sender
