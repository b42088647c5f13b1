"""In turn: one exchange that all ranks take part in, receivers one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from ...base.comm_plan import Combine, CommKind
from .cells import CellBlock, block_size, joined
from .demand import Conversion
from .moves import ExchangeMove, Transfer
from .sides import DeviceSet, members


def in_turn(conversion: Conversion, kind: CommKind, *, summed: bool) -> ExchangeMove:
    """A receiver keeps what it has; each further stretch comes from the holder that has sent least so far.

    kind: what all of it is called. summed: holders have addends, each its own, and all of them send.
    """
    parts = _addends(conversion) if summed else _copies(conversion)
    transfers = [
        Transfer(sender, receiver, blocks, sum(map(block_size, blocks)))
        for receiver, by_sender in parts
        for sender, found in sorted(by_sender.items())
        for blocks in (joined(found),)
    ]
    combine = Combine.SUM if summed else Combine.COPY
    return ExchangeMove(transfers, combine, conversion.before, conversion.after, frozenset(), kind)


SenderParts = Iterator[tuple[int, Mapping[int, list[CellBlock]]]]
"""Per receiver what each sender gives it."""


def _addends(conversion: Conversion) -> SenderParts:
    for receiver, cells in _needed(conversion):
        found: dict[int, list[CellBlock]] = {}
        for holders, blocks in cells.items():
            for sender in members(holders):
                found.setdefault(sender, []).extend(blocks)
        yield receiver, found


def _copies(conversion: Conversion) -> SenderParts:
    held = conversion.before.values()
    cut = [dim for dim in range(len(conversion.source.rows)) if len({own[dim] for own in held}) > 1]
    load = dict.fromkeys(conversion.before, 0)
    for receiver, cells in _needed(conversion):
        found: dict[int, list[CellBlock]] = {}
        for block, holders in sorted(_stretches(cells, cut)):
            if holders >> receiver & 1:
                sender = receiver
            else:
                sender = min(members(holders), key=lambda holder: load[holder])
                load[sender] += block_size(tuple(block[dim] for dim in cut))
            found.setdefault(sender, []).append(block)
        yield receiver, found


def _needed(conversion: Conversion) -> Iterator[tuple[int, dict[DeviceSet, list[CellBlock]]]]:
    """Per receiver the blocks that it needs, by who holds them."""
    for receiver in conversion.after:
        found: dict[DeviceSet, list[CellBlock]] = {}
        for cell in conversion.cells:
            if cell.needers >> receiver & 1:
                found.setdefault(cell.holders, []).extend(cell.blocks)
        yield receiver, found


def _stretches(
    cells: Mapping[DeviceSet, list[CellBlock]], cut: Sequence[int]
) -> Iterator[tuple[CellBlock, DeviceSet]]:
    """The blocks, one for each interval of the dims that the source cuts."""
    for holders, blocks in cells.items():
        for block in joined(blocks):
            choices = [
                [(rows,) for rows in intervals] if dim in cut else [intervals]
                for dim, intervals in enumerate(block)
            ]
            for stretch in product(*choices):
                yield stretch, holders
