"""Brings elements of a plan into tensors that are there already, as often as wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...program.switch_plan import SwitchPlan
from .carry import copy_moved
from .held import HeldState
from .messages import arriving_rows, leaving_rows, take_rows
from .stages import ROUND_BYTES
from .streams import streams_of

if TYPE_CHECKING:
    from ..transport import Transport


class Filling:
    """One rank's part of a plan, made ready. Every rank that the plan names fills at the same time."""

    def __init__(self, plan: SwitchPlan, world_rank: int, round_bytes: int = ROUND_BYTES) -> None:
        self._streams = streams_of(plan, world_rank, round_bytes)

    def fill(self, before: HeldState, found: HeldState, mover: Transport) -> int:
        """Write the elements that come into `found`; nothing of `before` changes. The bytes that were sent.

        May raise PeerLost, with some of the elements written.
        """
        sent = 0
        for each in self._streams.local:
            copy_moved(each, before, found)
        for phase, rounds in enumerate(self._streams.rounds):
            source = found if phase else before
            for sends, receives in rounds:
                arriving = {
                    peer: arriving_rows(found, parcel, mover.device) for peer, parcel in receives.items()
                }
                leaving = {peer: leaving_rows(source, parcel, mover.device) for peer, parcel in sends.items()}
                mover.swap_runs(leaving, arriving)
                sent += sum(row.numel() for rows in leaving.values() for row in rows)
                for peer, parcel in receives.items():
                    take_rows(found, parcel, arriving.pop(peer))
        return sent
