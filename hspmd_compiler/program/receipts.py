"""When what a rank sent has surely been received: its receiver has answered since.

A receiver r of a message reads it in its RECV; whatever r sends to the same rank behind that RECV tells, by
arriving, that the message has been received. So a send is over at the first such arrival, of the last of its
receivers. Receivers that send nothing back leave it open: it is over when the step's sends are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from .boxes import received_volumes, sent_volumes
from .program import Instruction, Op, RankProgram

NEVER = 1 << 62
Pair = tuple[int, int]


def with_receipts(ranks: Sequence[RankProgram]) -> list[RankProgram]:
    """Programs whose RECVs tell how many of the rank's sends are over by then. ranks: all of a program.

    Ranks that share their list of instructions go on doing so: it tells what is true of each of them.
    """
    by_rank = ends_of(ranks)
    ends: dict[int, list[int]] = {}
    for own in ranks:
        mine = by_rank[own.rank]
        others = ends.get(id(own.instructions), mine)
        ends[id(own.instructions)] = list(map(max, mine, others))
    made = {id(own.instructions): told(own.instructions, ends[id(own.instructions)]) for own in ranks}
    return [
        replace(own, instructions=found) if (found := made[id(own.instructions)]) else own for own in ranks
    ]


def ends_of(ranks: Sequence[RankProgram]) -> dict[int, list[int]]:
    """By rank, the position of its RECV by which each of its sends, in order, is over; or NEVER."""
    sends = {own.rank: _moved(own, Op.SEND) for own in ranks}
    receipts = {own.rank: {tag: at for at, tag, _ in _moved(own, Op.RECV)} for own in ranks}
    answers = _answers(sends, receipts)
    return {
        own.rank: [_over_at(own.rank, send, receipts, answers) for send in sends[own.rank]] for own in ranks
    }


def _moved(own: RankProgram, op: Op) -> list[tuple[int, int, list[int]]]:
    """(position, tag, other ends) of the rank's sends, or of its receives, in their order."""
    volumes = sent_volumes if op is Op.SEND else received_volumes
    peers: dict[int, list[int]] = {}
    found = []
    for at, each in enumerate(own.instructions):
        if each.op is op:
            if each.slot not in peers:
                moved = volumes(own.transfers[each.slot])
                peers[each.slot] = [peer for peer, size in moved.items() if size and peer != own.rank]
            found.append((at, each.tag, peers[each.slot]))
    return found


def _answers(
    sends: dict[int, list[tuple[int, int, list[int]]]], receipts: dict[int, dict[int, int]]
) -> dict[Pair, tuple[list[int], list[int]]]:
    """By (sender, receiver): where messages are sent, ascending; where the first from there on arrives."""
    found: dict[Pair, tuple[list[int], list[int]]] = {}
    for rank, listed in sends.items():
        for at, tag, peers in listed:
            for peer in peers:
                sent, arrived = found.setdefault((rank, peer), ([], []))
                sent.append(at)
                arrived.append(receipts[peer].get(tag, NEVER))
    for _, arrived in found.values():
        for place in range(len(arrived) - 2, -1, -1):
            arrived[place] = min(arrived[place], arrived[place + 1])
    return found


def _over_at(
    rank: int,
    send: tuple[int, int, list[int]],
    receipts: dict[int, dict[int, int]],
    answers: dict[Pair, tuple[list[int], list[int]]],
) -> int:
    """The position of the rank's RECV by which a send is over."""
    at, tag, receivers = send
    for receiver in receivers:
        sent, arrived = answers.get((receiver, rank), ([], []))
        first = bisect_right(sent, receipts[receiver].get(tag, NEVER))
        at = max(at, arrived[first] if first < len(sent) else NEVER)
    return at


def told(instructions: list[Instruction], ends: Sequence[int]) -> list[Instruction]:
    """The list with what its RECVs tell; empty where none tells anything. ends: of each send, in order."""
    made: list[Instruction] = []
    over = 0
    for at, each in enumerate(instructions):
        before = over
        while each.op is Op.RECV and over < len(ends) and ends[over] <= at:
            over += 1
        made.append(replace(each, over=over) if over > before else each)
    return made if over else []
