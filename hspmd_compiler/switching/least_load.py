"""Who sends what so that the fewest bytes cross nodes, and the busiest sender is the least busy.

Every rank receives what it lacks once, so that only sending is to be divided. To a node that lacks a class
and has no holder each element goes once, to one rank of it, which relays it to the others; a holder of the
node sends to each of its ranks itself, or to one that relays. Variables: how much each holder sends of what
crosses to each node, and how much each rank of a node sends of what is sent inside it.

Constraints: all that is lacking arrives; what crosses does so once. Bound: each element crosses at least once
to each node that lacks it, and each rank receives what it lacks; the first is attained always. Objective: the
least largest time over ranks (bytes sent inside the node, bytes sent to other nodes) and NICs of nodes. What
crosses, and what is sent inside each node, share no variable and are divided one after the other: exactly, by
maximum flow (`load_flow`). Ranks of a node with a holder relay only where the node's sending would else be
what the switch waits for. Then messages: what a rank sends of classes that have the same senders is one
interval of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..program.switch_plan import Move
from .demand import SwitchDemand
from .links import SwitchLinks
from .sending_shares import SendingShares, sending_shares
from .sending_tasks import RankInterval, SendingRole, SendingTask


def least_load(demands: Sequence[SwitchDemand], links: SwitchLinks) -> list[tuple[Move, ...]]:
    """The moves of each class; none of a class that nobody holds."""
    made = sending_shares(demands, links)
    return [
        tuple(
            move
            for node, targets in lack.items()
            for move in _to_node(made, node, number, targets, demands[number].elements)
        )
        for number, lack in enumerate(made.lacking)
    ]


def _to_node(
    made: SendingShares, node: int, number: int, targets: Sequence[int], elements: int
) -> Iterator[Move]:
    key = (node, (number, SendingRole.DIRECT))
    if key in made.tasks:
        yield from _direct(made.shares[key], made.tasks[key], targets)
        return
    first = made.elements(node, number, SendingRole.FIRST) or []
    others = made.elements(node, number, SendingRole.OTHERS)
    for sender, low, high in [(targets[0], 0, elements)] if others is None else others:
        entry = sender if sender in targets else targets[0]
        for source, start, stop in first:
            if max(low, start) < min(high, stop):
                yield Move(source, entry, max(low, start), min(high, stop))
        for target in targets:
            if target != entry:
                yield Move(sender, target, low, high, is_relay=sender == entry)


def _direct(sent: Sequence[RankInterval], task: SendingTask, targets: Sequence[int]) -> Iterator[Move]:
    """Each target in turn takes all elements, from whose interval of units they are in."""
    size = task.elements * task.element_units
    for source, low, high in sent:
        for index in range(low // size, -(-high // size)):
            start, stop = max(low, index * size), min(high, (index + 1) * size)
            first = (start - index * size) // task.element_units
            last = (stop - index * size) // task.element_units
            if first < last:
                yield Move(source, targets[index], first, last)
