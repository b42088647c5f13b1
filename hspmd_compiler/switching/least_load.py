"""Who sends what so that the fewest bytes cross nodes, and the busiest sender is the least busy.

Every rank receives what it lacks once, so that only sending is to be divided. Of a class and a node with
ranks that lack it there are two cases. The node has a holder: its holders send to each of these ranks.
Variables: how much of all this each holder sends. It has none: each element enters the node at one of these
ranks, which relays it to the others. Variables: how much each holder outside sends there, and how much enters
at each rank.

Constraints: all that is lacking arrives. Bound: each element crosses at least once to each node that lacks
it; that is attained whatever the variables are. Objective: the least largest time over ranks (bytes sent
inside the node, bytes sent to other nodes) and NICs of nodes. What crosses, and what is sent inside each
node, share no variable and are divided one after the other: exactly, by maximum flow (`load_flow`). Then
messages: what a rank sends of classes that have the same senders is one interval of them, node after node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..program.switch_plan import Move
from .demand import SwitchDemand
from .links import SwitchLinks
from .sending_tasks import RankInterval, SendingTask, SendingTasks


def least_load(demands: Sequence[SwitchDemand], links: SwitchLinks) -> list[tuple[Move, ...]]:
    """The moves of each class; none of a class that nobody holds."""
    tasks = SendingTasks.of(demands, links.nodes)
    crossing, inside = tasks.divided(links)
    found: list[tuple[Move, ...]] = []
    for number, each in enumerate(demands):
        moves: list[Move] = []
        for node, targets in tasks.lacking[number].items():
            key = (node, number)
            sent = inside.get(key, [(targets[0], 0, 0)])
            if key in crossing:
                entries = _entries(tasks.inside.get(key), sent, targets, each.elements)
                moves += _entering(crossing[key], tasks.crossing[key], entries)
                moves += _relayed(entries, targets)
            else:
                moves += _inside(sent, tasks.inside[key], targets)
        found.append(tuple(moves))
    return found


def _inside(sent: Sequence[RankInterval], task: SendingTask, targets: Sequence[int]) -> Iterator[Move]:
    """Each target in turn takes all elements, from whose interval they are in."""
    size = task.elements * task.element_units
    for source, low, high in sent:
        for index in range(low // size, -(-high // size)):
            start, stop = max(low, index * size), min(high, (index + 1) * size)
            first = (start - index * size) // task.element_units
            last = (stop - index * size) // task.element_units
            if first < last:
                yield Move(source, targets[index], first, last)


def _entries(
    task: SendingTask | None, sent: Sequence[RankInterval], targets: Sequence[int], elements: int
) -> list[RankInterval]:
    """Where elements enter a node: at the rank that relays them, all at the only one."""
    if task is None:
        return [(targets[0], 0, elements)]
    return _elements(sent, task.copies * task.element_units)


def _entering(
    sent: Sequence[RankInterval], task: SendingTask, entries: Sequence[RankInterval]
) -> Iterator[Move]:
    for source, low, high in _elements(sent, task.element_units):
        for target, start, stop in entries:
            if max(low, start) < min(high, stop):
                yield Move(source, target, max(low, start), min(high, stop))


def _relayed(entries: Sequence[RankInterval], targets: Sequence[int]) -> Iterator[Move]:
    for source, low, high in entries:
        for target in targets:
            if target != source:
                yield Move(source, target, low, high, is_relay=True)


def _elements(units: Sequence[RankInterval], size: int) -> list[RankInterval]:
    """Intervals of units as intervals of whole elements of that size; what two share goes to the second."""
    cut = ((rank, low // size, high // size) for rank, low, high in units)
    return [(rank, low, high) for rank, low, high in cut if low < high]
