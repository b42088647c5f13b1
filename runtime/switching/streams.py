"""A switch plan as messages: what each rank sends to and gets from each other one, round by round.

All ranks make the same messages of the same plan, each those that it has part in. Elements go in the order of
the parameters, so that few tensors are under way at a time. Relays are a phase of their own behind the moves
that bring what they pass on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...errors import InternalError
from ...program.boxes import volume
from ...program.state.part_places import parts_between
from ...program.switch_plan import Move, StatePart, SwitchClass, SwitchPlan


@dataclass(frozen=True, slots=True)
class MovedPart:
    """Elements [low, high) of a part, all kinds of the class. order: of its parameter."""

    order: int
    kinds: tuple[str, ...]
    element_bytes: int
    part: StatePart
    low: int
    high: int

    @property
    def size(self) -> int:
        """Elements of each kind."""
        return self.high - self.low


Parcel = tuple[MovedPart, ...]
"""What goes in one message, or is copied at once."""


@dataclass(frozen=True, slots=True)
class RankStreams:
    """One rank's part of a plan. rounds: by phase; in each round what it sends and gets, by the other rank.

    local: what it has before and needs after.
    """

    local: Parcel
    rounds: tuple[tuple[tuple[dict[int, Parcel], dict[int, Parcel]], ...], ...]


def streams_of(plan: SwitchPlan, rank: int, round_bytes: int) -> RankStreams:
    """The part of a world rank. round_bytes: of all messages that a rank sends and gets in one round.

    One element that is larger than that goes in a message of its own.
    """
    names = dict.fromkeys(part.name for each in plan.classes for part in each.parts)
    order = {name: number for number, name in enumerate(names)}
    local: list[MovedPart] = []
    pairs: list[dict[tuple[int, int], list[MovedPart]]] = []
    for each in plan.classes:
        if rank in each.holders and rank in each.needers:
            local += _moved(each, order, 0, sum(volume(part.boxes) for part in each.parts))
        for move, phase in phases(each.moves):
            pairs += [{} for _ in range(phase + 1 - len(pairs))]
            moved = pairs[phase].setdefault((move.source, move.target), [])
            if rank in (move.source, move.target):
                moved += _moved(each, order, move.low, move.high)
    rounds = tuple(_rounds(of_phase, rank, round_bytes) for of_phase in pairs)
    return RankStreams(tuple(sorted(local, key=_by_order)), rounds)


def phases(moves: Sequence[Move]) -> Iterator[tuple[Move, int]]:
    """Each move and its phase: 0, or for a relay one more than those that bring what it passes on."""
    known = [(move, 0) for move in moves if not move.is_relay]
    waiting = [move for move in moves if move.is_relay]
    yield from known
    while waiting:
        ready = [move for move in waiting if not any(_feeds(other, move) for other in waiting)]
        if not ready:
            raise InternalError("relays of a switch plan wait for each other")
        found = [
            (move, 1 + max((phase for other, phase in known if _feeds(other, move)), default=0))
            for move in ready
        ]
        yield from found
        known += found
        waiting = [move for move in waiting if move not in ready]


def _feeds(move: Move, relay: Move) -> bool:
    return move.target == relay.source and move.low < relay.high and relay.low < move.high


def _moved(each: SwitchClass, order: dict[str, int], low: int, high: int) -> list[MovedPart]:
    return [
        MovedPart(order[part.name], each.kinds, each.element_bytes, part, start, end)
        for part, start, end in parts_between(each, low, high)
    ]


def _by_order(moved: MovedPart) -> int:
    return moved.order


def _rounds(
    pairs: dict[tuple[int, int], list[MovedPart]], rank: int, round_bytes: int
) -> tuple[tuple[dict[int, Parcel], dict[int, Parcel]], ...]:
    """Message r of each pair is in round r; a rank's budget is shared evenly by those that it has part in."""
    shares = Counter(end for pair in pairs for end in pair)
    rounds: list[tuple[dict[int, Parcel], dict[int, Parcel]]] = []
    for (source, target), moved in pairs.items():
        if rank not in (source, target):
            continue
        most_bytes = round_bytes // max(shares[source], shares[target])
        for number, parcel in enumerate(cut_parcels(sorted(moved, key=_by_order), most_bytes)):
            if number == len(rounds):
                rounds.append(({}, {}))
            sends, receives = rounds[number]
            if rank == source:
                sends[target] = parcel
            else:
                receives[source] = parcel
    return tuple(rounds)


def cut_parcels(moved: Sequence[MovedPart], most_bytes: int) -> Iterator[Parcel]:
    """The same elements in the same order, in parcels of at most so many bytes, or of one element."""
    parcel: list[MovedPart] = []
    left = most_bytes
    for each in moved:
        low = each.low
        while low < each.high:
            fits = left // each.element_bytes
            if fits < 1 and parcel:
                yield tuple(parcel)
                parcel, left = [], most_bytes
                continue
            high = min(low + max(fits, 1), each.high)
            parcel.append(replace(each, low=low, high=high))
            left -= (high - low) * each.element_bytes
            low = high
    if parcel:
        yield tuple(parcel)
