"""Ways: the candidates for a conversion, each with its price, made only when it is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from ...base.comm_plan import CommKind, CostModel
from .cells import Cell
from .demand import Conversion, Demand
from .direct import direct, direct_tally, sole_loads
from .moves import StepMove
from .price import FlatCost, seconds_of
from .reduction import all_reduction
from .relay import Owners, owner_choices, relay, relay_tally, worth_a_relay
from .senders import ByLoad, ByReplica, Senders, near_devices
from .sides import DeviceSet, united
from .tally import Amounts, Busiest, largest


class Method(Enum):
    """How devices come from one annotation to the other."""

    NOTHING = "nothing"
    LOCAL = "local slice"
    ALL_REDUCE = "all-reduce"
    DIRECT = "direct exchange"
    BALANCED = "direct exchange, senders by load"
    RELAY = "relay by needers"
    RELAY_HOLDERS = "relay by holders"
    RELAY_ALL = "relay by all"
    TIERS = "bottom tier, then top tier"
    IN_TURN = "in turn"


PREFERRED = (Method.ALL_REDUCE, Method.IN_TURN)
"""What operators' conversions take while no cost model is given: the first that fits, whatever others cost.

Each is one step that all ranks of a stage take part in, so that a program is one sequence of collectives.
"""

RELAYS = {
    Owners.NEEDERS: Method.RELAY,
    Owners.HOLDERS: Method.RELAY_HOLDERS,
    Owners.ALL: Method.RELAY_ALL,
}

Moves = tuple[StepMove, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """One candidate. seconds: None where it doesn't fit, for this reason. kind: of its step, if it is one."""

    method: Method
    make: Callable[[], Moves]
    seconds: float | None = 0.0
    reason: str = ""
    kind: CommKind | None = None

    @property
    def name(self) -> str:
        """For people."""
        return self.method.value if self.kind is None else self.kind.value.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Pricing:
    """A cost model, the bytes of an element, and whether a plan may have one step only."""

    cost: CostModel
    element: int
    one_step: bool = False

    def of(self, make: Callable[[], Moves], count: Callable[[], tuple[Busiest, ...]]) -> float:
        """Seconds. A flat cost needs no more than totals per rank, so the moves are not made for it."""
        if isinstance(self.cost, FlatCost):
            return sum([self.cost.step(busiest, self.element) for busiest in count()])
        return seconds_of(make(), self.cost, self.element)

    def may_gain(self, conversion: Conversion, ways: Sequence[Way], steps: int) -> bool:
        """Whether a plan of so many steps can be cheaper than these, as far as is known before it is made."""
        if not isinstance(self.cost, FlatCost):
            return True
        best = min(way.seconds for way in ways if way.seconds is not None)
        return best > self.cost.least(steps, least_busy(conversion) * self.element)


def ways_of(conversion: Conversion, pricing: Pricing) -> list[Way]:
    """The candidates, the simplest first.

    Left out is what can't be cheaper than one that is there: anything but an all-reduce where one fits, and
    a relay where its two steps cost more even if they moved no more than any plan must. A cost model that
    knows which ranks are near is asked about all of them.
    """
    near = near_devices(pricing.cost, conversion.devices)
    by_replica = ByReplica(near, conversion.source, conversion.target)
    if _all_at_home(conversion):
        return [_at_home(conversion, by_replica)]
    ways: list[Way] = []
    if conversion.sums and not conversion.target.pending:
        ways.append(_all_reduce(conversion, pricing))
        if ways[0].seconds is not None and not near:
            return ways
    busiest = direct_tally(conversion, by_replica).busiest()
    ways.append(_way(Method.DIRECT, pricing, lambda: (direct(conversion, by_replica),), lambda: (busiest,)))
    unbalanced = busiest.sent > busiest.received
    if unbalanced:
        ways.append(_balanced(conversion, pricing, near))
    gains = not pricing.one_step and (conversion.sums or unbalanced or near)
    if gains and pricing.may_gain(conversion, ways, steps=2):
        ways += _relays(conversion, pricing, by_replica)
    return ways


def _all_at_home(conversion: Conversion) -> bool:
    """Whether every device holds what it needs, as one addend."""
    return not any(demand.needers & ~_at_hand(demand) for demands in conversion.demands for demand in demands)


def _at_hand(demand: Demand) -> DeviceSet:
    """The devices that hold all of a sum; everybody holds a zero."""
    return united(sums[0] if sums else demand.needers for sums in demand.sums if len(sums) <= 1)


def _at_home(conversion: Conversion, senders: Senders) -> Way:
    """Nothing moves between devices."""
    move = direct(conversion, senders)
    idle = move.kept >= conversion.after.keys()
    return Way(Method.NOTHING if idle else Method.LOCAL, lambda: () if idle else (move,))


def _all_reduce(conversion: Conversion, pricing: Pricing) -> Way:
    found = all_reduction(conversion)
    if isinstance(found, str):
        return Way(Method.ALL_REDUCE, tuple, None, found)
    return Way(Method.ALL_REDUCE, lambda: (found,), seconds_of((found,), pricing.cost, pricing.element))


def _balanced(conversion: Conversion, pricing: Pricing, near: dict[int, DeviceSet]) -> Way:
    loads = sole_loads(conversion)
    return _way(
        Method.BALANCED,
        pricing,
        lambda: (direct(conversion, ByLoad(near, dict(loads))),),
        lambda: (direct_tally(conversion, ByLoad(near, dict(loads))).busiest(),),
    )


def _relays(conversion: Conversion, pricing: Pricing, by_replica: Senders) -> Iterator[Way]:
    if worth_a_relay(conversion):
        for owners in owner_choices(conversion):
            yield _relay(conversion, pricing, by_replica, owners)


def _relay(conversion: Conversion, pricing: Pricing, senders: Senders, owners: Owners) -> Way:
    return _way(
        RELAYS[owners],
        pricing,
        lambda: relay(conversion, owners, senders),
        lambda: tuple(tally.busiest() for tally in relay_tally(conversion, owners, senders)),
    )


def _way(
    method: Method, pricing: Pricing, make: Callable[[], Moves], count: Callable[[], tuple[Busiest, ...]]
) -> Way:
    return Way(method, make, pricing.of(make, count))


def least_busy(conversion: Conversion) -> int:
    """Elements that the busiest rank sends, or receives, in any plan at least.

    A rank that needs a sum, or a value that it doesn't hold, receives as much. A rank that alone holds an
    addend, or a value, which another one needs sends as much.
    """
    sent: Amounts = {}
    received: Amounts = {}
    for cell, demands in zip(conversion.cells, conversion.demands, strict=True):
        for demand in demands:
            receiving, sending = _receiving(cell, demand), _sending(demand)
            received[receiving] = received.get(receiving, 0) + cell.size
            sent[sending] = sent.get(sending, 0) + cell.size
    return max(largest(sent), largest(received))


def _receiving(cell: Cell, demand: Demand) -> DeviceSet:
    """Those that hold nothing of it, and all where it is a sum."""
    if all(len(sums) > 1 for sums in demand.sums):
        return demand.needers
    return demand.needers & ~cell.holders


def _sending(demand: Demand) -> DeviceSet:
    """Those that others can't do without."""
    if len(demand.sums) > 1:
        return 0
    single = (holders for holders in demand.sums[0] if holders & (holders - 1) == 0)
    return united(holders for holders in single if demand.needers & ~holders)
