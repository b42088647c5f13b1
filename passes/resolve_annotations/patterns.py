"""Patterns: which collective an exchange amounts to, between ranks that exchange anything with each other."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ...base.comm_plan import Combine, CommKind
from .moves import ExchangeMove, Transfer
from .sides import DeviceSet, members, met


class Pattern(Enum):
    """The names of reports."""

    LOCAL = "local slice"
    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    SEND_RECV = "send/receive"


KINDS = {
    Pattern.ALL_GATHER: CommKind.ALL_GATHER,
    Pattern.REDUCE_SCATTER: CommKind.REDUCE_SCATTER,
    Pattern.ALL_TO_ALL: CommKind.ALL_TO_ALL,
    Pattern.ALL_REDUCE: CommKind.ALL_TO_ALL,
}
"""The executor's name of a pattern; it sends and receives what has none."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Ranks that exchange something, directly or through others; also what each of them keeps."""

    ranks: tuple[int, ...]
    transfers: tuple[Transfer, ...]

    def pattern(self, combine: Combine) -> Pattern:
        """The collective that it amounts to."""
        if len(self.ranks) == 1:
            return Pattern.LOCAL
        pairs = {(each.sender, each.receiver) for each in self.transfers if each.sender != each.receiver}
        if len(pairs) == len(self.ranks) * (len(self.ranks) - 1):
            return self._among_all(combine)
        senders = {sender for sender, _ in pairs}
        receivers = {receiver for _, receiver in pairs}
        if combine is Combine.SUM and len(receivers) == 1 < len(senders):
            return Pattern.REDUCE
        if combine is Combine.COPY and len(senders) == 1 < len(receivers):
            sent = self._received()
            if len({sent[receiver] for receiver in receivers}) == 1:
                return Pattern.BROADCAST
        return Pattern.SEND_RECV

    def _among_all(self, combine: Combine) -> Pattern:
        """Each rank sends to each other one."""
        one_result = len(set(self._received().values())) == 1
        if combine is Combine.SUM:
            return Pattern.ALL_REDUCE if one_result else Pattern.REDUCE_SCATTER
        return Pattern.ALL_GATHER if one_result else Pattern.ALL_TO_ALL

    def _received(self) -> dict[int, frozenset[object]]:
        """What each rank has in the end, from others or itself."""
        found: dict[int, set[object]] = {}
        for each in self.transfers:
            found.setdefault(each.receiver, set()).add(each.blocks)
        return {rank: frozenset(blocks) for rank, blocks in found.items()}


def meetings_of(move: ExchangeMove) -> list[Meeting]:
    """All meetings of an exchange, and each rank that only cuts what it has, by their least rank."""
    moving = (each for each in move.transfers if each.sender != each.receiver)
    joined = met(1 << each.sender | 1 << each.receiver for each in moving)
    of_rank = {rank: devices for devices in joined for rank in members(devices)}
    found: dict[DeviceSet, list[Transfer]] = {devices: [] for devices in joined}
    for device in move.target:
        if device not in of_rank and device not in move.kept:
            of_rank[device] = 1 << device
            found[1 << device] = []
    for each in move.transfers:
        if each.sender in of_rank:
            found[of_rank[each.sender]].append(each)
    meetings = [Meeting(members(devices), tuple(transfers)) for devices, transfers in found.items()]
    return sorted(meetings, key=lambda meeting: meeting.ranks)


def collectives_of(move: ExchangeMove) -> list[tuple[CommKind, tuple[int, ...]]]:
    """(kind, ranks) of every collective of an exchange, as the executor does them."""
    if move.together is not None:
        return [(move.together, tuple(dict.fromkeys((*move.source, *move.target))))]
    return [
        (KINDS.get(meeting.pattern(move.combine), CommKind.SEND_RECV), meeting.ranks)
        for meeting in meetings_of(move)
    ]


def split_meetings(meeting: Meeting) -> list[Meeting]:
    """The meeting as one for each set of ranks that exchange the same part of the tensor."""
    ranks: dict[object, DeviceSet] = {}
    for each in meeting.transfers:
        ranks[each.blocks] = ranks.get(each.blocks, 0) | 1 << each.sender | 1 << each.receiver
    found: dict[DeviceSet, list[Transfer]] = {}
    for each in meeting.transfers:
        found.setdefault(ranks[each.blocks], []).append(each)
    return [Meeting(members(devices), tuple(transfers)) for devices, transfers in found.items()]


def named(move: ExchangeMove) -> list[tuple[str, tuple[int, ...]]]:
    """(name, ranks) of each meeting, or, where it is no collective, of those it is split into."""
    found = []
    for meeting in meetings_of(move):
        pattern = meeting.pattern(move.combine)
        if pattern is not Pattern.SEND_RECV:
            found.append((pattern.value, meeting.ranks))
            continue
        smaller = [part for part in split_meetings(meeting) if len(part.ranks) > 1]
        split = "split " if len(smaller) > 1 else ""
        for part in smaller:
            name = part.pattern(move.combine)
            found.append((f"{split if name is not Pattern.SEND_RECV else ''}{name.value}", part.ranks))
    return found
