"""Direct exchange: every device gets what it needs in one step, and keeps what it has. Always possible."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...base.comm_plan import Combine
from .cells import Blocks
from .demand import Conversion, Demand, Sums, fewest_to_receive
from .moves import ExchangeMove, Transfer, view_of
from .senders import Senders
from .sides import DeviceSet, members
from .tally import Tally


def direct(conversion: Conversion, senders: Senders) -> ExchangeMove:
    """The exchange in which receivers add what they need to be sums."""
    transfers: list[Transfer] = []
    for cell, demands in zip(conversion.cells, conversion.demands, strict=True):
        for demand in demands:
            for sums, receivers in _chosen(demand):
                transfers += received(cell.blocks, cell.size, sums, receivers, senders)
    combine = Combine.SUM if conversion.sums else Combine.COPY
    source, target = conversion.before, conversion.after
    return ExchangeMove(transfers, combine, source, target, kept_devices(conversion, transfers))


def received(
    blocks: Blocks, size: int, sums: Sums, receivers: DeviceSet, senders: Senders
) -> Iterator[Transfer]:
    """Every addend comes to each receiver, one after the other, from itself where it holds it."""
    for holders in sums:
        for receiver in members(receivers & holders):
            yield Transfer(receiver, receiver, blocks, size)
        for sender, served in senders.deal(holders, receivers & ~holders, size).items():
            for receiver in members(served):
                yield Transfer(sender, receiver, blocks, size)


def direct_tally(conversion: Conversion, senders: Senders) -> Tally:
    """What `direct` moves, which asks for senders in the same order."""
    tally = Tally()
    if not conversion.source.pending:
        for cell in conversion.cells:
            tally_sums(tally, (cell.holders,), cell.needers, cell.size, senders)
        return tally
    for cell, demands in zip(conversion.cells, conversion.demands, strict=True):
        for demand in demands:
            for sums, receivers in _chosen(demand):
                tally_sums(tally, sums, receivers, cell.size, senders)
    return tally


def sole_loads(conversion: Conversion) -> dict[int, int]:
    """Elements that each device has to send, since nobody else holds them."""
    loads: dict[int, int] = {}
    for cell, demands in zip(conversion.cells, conversion.demands, strict=True):
        for demand in demands:
            for sums, receivers in _chosen(demand):
                for holders in (each for each in sums if each & (each - 1) == 0):
                    sender, others = holders.bit_length() - 1, (receivers & ~holders).bit_count()
                    loads[sender] = loads.get(sender, 0) + cell.size * others
    return loads


def _chosen(demand: Demand) -> list[tuple[Sums, DeviceSet]]:
    """Which sum each of the needers takes."""
    if len(demand.sums) == 1:
        return [(demand.sums[0], demand.needers)]
    found: dict[Sums, DeviceSet] = {}
    for receiver in members(demand.needers):
        sums = fewest_to_receive(demand, receiver)
        found[sums] = found.get(sums, 0) | 1 << receiver
    return list(found.items())


def tally_sums(tally: Tally, sums: Sums, receivers: DeviceSet, size: int, senders: Senders) -> None:
    """Each receiver gets the addends that it does not hold itself."""
    single = 0
    for holders in sums:
        if holders & (holders - 1) == 0:
            single |= holders
            continue
        for sender, served in senders.deal(holders, receivers & ~holders, size).items():
            tally.add(1 << sender, served, size)
    tally.add(single, receivers, size)


def kept_devices(conversion: Conversion, transfers: list[Transfer]) -> frozenset[int]:
    """Devices that need just what they have."""
    source, target = conversion.before, conversion.after
    own = dict.fromkeys((device for device in target if source.get(device) == target[device]), 0)
    for sender, receiver, _, size in transfers:
        if receiver in own:
            if sender == receiver:
                own[receiver] += size
            else:
                del own[receiver]
    return frozenset(device for device, size in own.items() if size == prod(view_of(target[device])))
