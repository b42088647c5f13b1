"""The least that any plan moves."""

from __future__ import annotations

from .cells import Cell
from .demand import Conversion, Demand
from .sides import DeviceSet
from .tally import Amounts, largest


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
    alone = 0
    for holders in demand.sums[0]:
        if holders & (holders - 1) == 0 and demand.needers & ~holders:
            alone |= holders
    return alone
