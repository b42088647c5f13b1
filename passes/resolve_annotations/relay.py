"""Relay: each part of a cell is brought to one owner, summed there, and spread from it, in two steps.

So an all-reduce is done where devices hold unlike rows, and a copy that many devices need leaves its
few holders once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from ...base.comm_plan import Combine
from .cells import Blocks, Cell, block_size, cut_blocks, part_sizes
from .demand import Conversion, Sums
from .direct import kept_devices, received, tally_sums
from .moves import ExchangeMove, Local, Packed, Transfer
from .senders import Senders
from .sides import DeviceSet, members, united
from .tally import Tally


class Owners(Enum):
    """Who may own a part."""

    NEEDERS = "needers"
    HOLDERS = "holders"
    ALL = "all"


def worth_a_relay(conversion: Conversion) -> bool:
    """Whether a part is summed more than once, or sent more than once by one holder."""
    if conversion.target.pending:
        return False
    return any(
        _relayed(cell, _fewest(demands[0].sums))
        for cell, demands in zip(conversion.cells, conversion.demands, strict=True)
    )


def relay(conversion: Conversion, owners: Owners, senders: Senders) -> tuple[ExchangeMove, ExchangeMove]:
    """The two steps."""
    gather: list[Transfer] = []
    spread: list[Transfer] = []
    for cell, demands in zip(conversion.cells, conversion.demands, strict=True):
        sums = _fewest(demands[0].sums)
        if _relayed(cell, sums):
            for to_owner, from_owner in _by_owners(cell, sums, owners, senders):
                gather += to_owner
                spread += from_owner
            if len(sums) == 1:
                stay = cell.needers & sums[0]
                both = list(received(cell.blocks, cell.size, sums, stay, senders))
                gather += both
                spread += both
        else:
            gather += received(cell.blocks, cell.size, sums, cell.needers, senders)
            spread += [Transfer(device, device, cell.blocks, cell.size) for device in members(cell.needers)]
    return _steps(conversion, gather, spread)


def relay_tally(conversion: Conversion, owners: Owners, senders: Senders) -> tuple[Tally, Tally]:
    """What both steps move."""
    gather, spread = Tally(), Tally()
    for cell, demands in zip(conversion.cells, conversion.demands, strict=True):
        sums = _fewest(demands[0].sums)
        if not _relayed(cell, sums):
            tally_sums(gather, sums, cell.needers, cell.size, senders)
            continue
        needers = _waiting(cell, sums)
        able = _able(needers, sums, owners)
        by_size: dict[int, DeviceSet] = {}
        for owner, size in zip(members(able), part_sizes(cell.blocks, able.bit_count()), strict=True):
            by_size[size] = by_size.get(size, 0) | 1 << owner
        for size, alike in by_size.items():
            tally_sums(gather, sums, alike, size, senders)
            spread.add(alike, needers, size)
    return gather, spread


def owner_choices(conversion: Conversion) -> tuple[Owners, ...]:
    """The choices that differ."""
    if not conversion.sums or all(cell.holders == cell.needers for cell in conversion.cells):
        return (Owners.NEEDERS,)
    return tuple(Owners)


def _fewest(alternatives: Sequence[Sums]) -> Sums:
    """The shortest sum; where devices have the whole value, it comes from any of these."""
    shortest = min(alternatives, key=len)
    if len(shortest) > 1:
        return shortest
    return (united(sums[0] for sums in alternatives if len(sums) == 1),)


def _relayed(cell: Cell, sums: Sums) -> bool:
    if len(sums) > 1:
        return True
    return (cell.needers & ~sums[0]).bit_count() > max(1, sums[0].bit_count())


def _by_owners(
    cell: Cell, sums: Sums, owners: Owners, senders: Senders
) -> Iterator[tuple[list[Transfer], list[Transfer]]]:
    """Per owner: what it receives, and what it sends to those who need its part."""
    needers = _waiting(cell, sums)
    able = members(_able(needers, sums, owners))
    for owner, blocks in zip(able, cut_blocks(cell.blocks, len(able)), strict=True):
        size = sum(map(block_size, blocks))
        if size:
            yield (
                list(received(blocks, size, sums, 1 << owner, senders)),
                [Transfer(owner, needer, blocks, size) for needer in members(needers)],
            )


def _waiting(cell: Cell, sums: Sums) -> DeviceSet:
    """Who is served by the owners: all needers of a sum, but those who have a copy already."""
    return cell.needers if len(sums) > 1 else cell.needers & ~sums[0]


def _able(needers: DeviceSet, sums: Sums, owners: Owners) -> DeviceSet:
    if len(sums) == 1 or owners is Owners.NEEDERS:
        return needers
    holders = united(sums)
    return holders if owners is Owners.HOLDERS else holders | needers


def _steps(
    conversion: Conversion, gather: list[Transfer], spread: list[Transfer]
) -> tuple[ExchangeMove, ExchangeMove]:
    source, target = conversion.before, conversion.after
    kept = _untouched(conversion, gather, spread)
    packed: dict[int, list[Blocks]] = {}
    for transfer in gather:
        if transfer.receiver not in kept:
            packed.setdefault(transfer.receiver, []).append(transfer.blocks)
    between: dict[int, Local] = {device: Packed.of(blocks) for device, blocks in packed.items()}
    between |= {device: source[device] for device in kept}
    combine = Combine.SUM if conversion.sums else Combine.COPY
    return (
        ExchangeMove(gather, combine, source, between, kept),
        ExchangeMove(spread, Combine.COPY, between, target, kept),
    )


def _untouched(conversion: Conversion, gather: list[Transfer], spread: list[Transfer]) -> frozenset[int]:
    """Devices that need just what they have, and own nothing for others."""
    received = {each.receiver for each in gather if each.sender != each.receiver}
    sending = {each.sender for each in spread if each.sender != each.receiver}
    return kept_devices(conversion, spread) - received - sending
