"""Segments of ranks as seconds: what is computed on the rank's device, and its meetings in between."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from ...base.dtypes import BYTES
from ...program.boxes import received_volumes
from ...program.program import RankProgram
from ..compute import DeviceRates, SegmentPrices
from .comm_prices import StepComm
from .rank_shapes import RankShape
from .segment_walk import CommPart, WalkedSegment

COPIES = 2
"""What is packed or unpacked is read and written."""


@dataclass(slots=True)
class PricedRun:
    """Communication of one group, one after the other. seconds: of it and of what is computed between,
    inner_s: of the latter. busy_s: that each member's processor works on it. part: of a gather that is under
    way while its members compute, the start or the end."""

    group: tuple[int, ...]
    key: Hashable
    seconds: float
    inner_s: float
    size_bytes: int
    busy_s: float
    part: CommPart = CommPart.ALL


@dataclass(slots=True)
class PricedSegment:
    """computed: seconds before, between and behind `runs`. pieces: where no run joins."""

    computed: list[float]
    runs: list[PricedRun]
    pieces: list[float]


class SegmentPricer:
    """The segments of all ranks.

    apart: each communication is a meeting of its own, since ranks share processors. scale: of what a rank
    computes.
    """

    def __init__(
        self,
        owns: Mapping[int, RankProgram],
        shapes: Mapping[int, RankShape],
        rates: Mapping[int, DeviceRates],
        prices: SegmentPrices,
        comm: StepComm,
        apart: bool,
    ) -> None:
        self.owns, self.shapes, self.rates, self.prices, self.comm = owns, shapes, rates, prices, comm
        self.scale: Mapping[int, float] = {}
        self._apart = apart
        self._mixed = set() if apart else self._mixed_groups()
        self._known: dict[tuple[int, int], PricedSegment] = {}

    def of(self, rank: int, walked: WalkedSegment) -> PricedSegment:
        """A walked segment on one rank's device, its communication with this rank's partners."""
        key = (rank, id(walked))
        if key not in self._known:
            self._known[key] = self._priced(rank, walked)
        return self._known[key]

    def _priced(self, rank: int, walked: WalkedSegment) -> PricedSegment:
        """Communication of one group that follows on each other is one meeting: its members walk in step.

        Its seconds are this member's; the meeting takes those of the slowest.
        """
        own = self.owns[rank]
        factor = self.scale.get(rank, 1.0)
        pieces = [piece * factor for piece in self.prices.pieces(walked, self.rates[rank])]
        computed, runs = [pieces[0]], list[PricedRun]()
        for comm, piece in zip(walked.comms, pieces[1:], strict=True):
            step = own.comms[comm.slot]
            if len(step.group) < 2:
                moved = sum(received_volumes(step).values()) * BYTES[step.dtype]
                moving = 0.0 if comm.part is CommPart.END else self.rates[rank].moved_s(COPIES * moved)
                computed[-1] += moving + piece
                continue
            seconds = self.comm.step_s(step, comm.size)
            busy_s = seconds * self.comm.cost.busy_part(step.kind.value, step.group)
            joined = not self._apart and step.group not in self._mixed and comm.part is CommPart.ALL
            if joined and runs and runs[-1].group == step.group and runs[-1].part is CommPart.ALL:
                last = runs[-1]
                last.seconds += computed[-1] + seconds
                last.inner_s += computed[-1]
                last.size_bytes += comm.size
                last.busy_s += busy_s
                computed[-1] = piece
            else:
                key = (step.id, step.group)
                runs.append(PricedRun(step.group, key, seconds, 0.0, comm.size, busy_s, comm.part))
                computed.append(piece)
        return PricedSegment(computed, runs, pieces)

    def _mixed_groups(self) -> set[tuple[int, ...]]:
        """Groups of which a member meets in another group too, within one segment."""
        mixed: set[tuple[int, ...]] = set()
        slots: dict[int, list[list[int]]] = {}
        for rank, own in self.owns.items():
            shape = self.shapes[rank]
            if id(shape) not in slots:
                walks = {id(step.walked): step.walked for step in shape.steps if step is not None}
                slots[id(shape)] = [
                    list(dict.fromkeys(comm.slot for comm in walked.comms))
                    for walked in walks.values()
                    if walked is not None
                ]
            for of_segment in slots[id(shape)]:
                groups = {own.comms[slot].group for slot in of_segment if len(own.comms[slot].group) > 1}
                if len(groups) > 1:
                    mixed |= groups
        return mixed
