"""What a plan moves: bytes kept, inside nodes and across, the least that must cross, and the busiest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..program.boxes import volume
from ..program.switch_plan import Move, SwitchClass, SwitchPlan
from .demand import SwitchDemand
from .links import SwitchLinks
from .sending_shares import by_node

SentBetween = Mapping[tuple[int, int], int]
"""Bytes by (source, target)."""


@dataclass(frozen=True, slots=True)
class SwitchAmount:
    elements: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class RankLoad:
    """The rank with the most bytes, the first of such; -1 where nothing moves."""

    rank: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SwitchTotals:
    """local: what needers hold already. intra_node, inter_node: what is sent, relays too.

    inter_node_bound_bytes: that must cross, since a node that lacks an element gets it at least once.
    messages: pairs of ranks. seconds: of the busiest rank or NIC, if all goes at once; None where links are
    not told.
    """

    local: SwitchAmount
    intra_node: SwitchAmount
    inter_node: SwitchAmount
    inter_node_bound_bytes: int
    busiest_sender: RankLoad
    busiest_receiver: RankLoad
    messages: int
    seconds: float | None


def totals(plan: SwitchPlan, links: SwitchLinks) -> SwitchTotals:
    """Of all ranks."""
    return totals_of([(demand_of(each), each.moves) for each in plan.classes], links)


def demand_of(each: SwitchClass) -> SwitchDemand:
    """A class without its parts."""
    elements = sum(volume(part.boxes) for part in each.parts)
    return SwitchDemand(elements, each.element_bytes, each.holders, each.needers)


def totals_of(planned: Iterable[tuple[SwitchDemand, Iterable[Move]]], links: SwitchLinks) -> SwitchTotals:
    """Of demands with their moves."""
    planned = [(each, tuple(moves)) for each, moves in planned]
    local = [
        (each.elements * (len(each.needers) - len(each.missing)), each.element_bytes) for each, _ in planned
    ]
    amounts: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    sent: dict[tuple[int, int], int] = {}
    for each, moves in planned:
        for move in moves:
            size = move.high - move.low
            crosses = links.nodes[move.source] != links.nodes[move.target]
            amounts[crosses].append((size, each.element_bytes))
            pair = (move.source, move.target)
            sent[pair] = sent.get(pair, 0) + size * each.element_bytes
    return SwitchTotals(
        _amount(local),
        _amount(amounts[False]),
        _amount(amounts[True]),
        sum(bound_bytes(each, links) for each, _ in planned),
        _busiest((source, size) for (source, _), size in sent.items()),
        _busiest((target, size) for (_, target), size in sent.items()),
        len(sent),
        largest_s(sent, links) if links.is_told else None,
    )


def bound_bytes(demand: SwitchDemand, links: SwitchLinks) -> int:
    """What must cross of a class: all of it to each node where ranks need it and none holds it."""
    if not demand.holders:
        return 0
    without = by_node(demand.missing, links.nodes).keys() - by_node(demand.holders, links.nodes).keys()
    return demand.elements * demand.element_bytes * len(without)


def largest_s(sent: SentBetween, links: SwitchLinks) -> float:
    """The largest time of a rank or a NIC, in either direction."""
    times: dict[tuple[str, int], float] = {}
    for (source, target), size in sent.items():
        for load, unit_s in _loads(source, target, links):
            times[load] = times.get(load, 0.0) + size * unit_s
    return max(times.values(), default=0.0)


def _loads(source: int, target: int, links: SwitchLinks) -> Iterator[tuple[tuple[str, int], float]]:
    """What a byte between two ranks keeps busy, and how long; all that a rank gets arrives as if near."""
    start, end = links.nodes[source], links.nodes[target]
    yield ("receives", target), links.near_s[end]
    if start == end:
        yield ("sends near", source), links.near_s[start]
    else:
        yield ("sends far", source), links.far_s
        yield ("leaves", start), links.nic_s[start]
        yield ("enters", end), links.nic_s[end]


def _amount(parts: Iterable[tuple[int, int]]) -> SwitchAmount:
    parts = list(parts)
    return SwitchAmount(sum(size for size, _ in parts), sum(size * each for size, each in parts))


def _busiest(loads: Iterable[tuple[int, int]]) -> RankLoad:
    by_rank: dict[int, int] = {}
    for rank, size in loads:
        by_rank[rank] = by_rank.get(rank, 0) + size
    rank = min(by_rank, key=lambda each: (-by_rank[each], each), default=-1)
    return RankLoad(rank, by_rank.get(rank, 0))
