"""What a parameter costs in each type: its gradient's sum, its update, gathers under ZeRO, and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from ..cost_models.steps.stored_bytes import moments_of
from ..ir.graph import ParamInfo
from .link_prices import LinkPrice
from .machine import SearchMachine
from .options import MemoryPrices, SearchOptions
from .space.codes import FIRST_CUT, REPLICATE, WHOLE, cut_code, cut_of, is_cut
from .whole_shares import ANY, Shares

ZERO_STATE, ZERO_GRADIENTS, ZERO_PARAMETERS = 1, 2, 3
SUM_BYTES = 4
"""Of an element of a gradient's sum: narrow types are summed in float32."""


class ParamWay(NamedTuple):
    """One way to hold a parameter. seconds: of a step. held: bytes on each lane. factors: whether each inner
    rank makes its gradient of gathered factors, whose gathers are not among the seconds. summed_s: of the
    seconds, those of its gradient's sum that a backward pass can go on beside."""

    code: int
    zero: int
    seconds: float
    held: tuple[float, ...]
    factors: bool = False
    summed_s: float = 0.0

    def objective(self, memory: MemoryPrices, weight: float = 1.0) -> float:
        """Seconds, and memory at its price. weight: of what a backward pass can go on beside."""
        seconds = self.seconds - (1.0 - weight) * self.summed_s
        return seconds + sum(s * size for s, size in zip(memory.per_byte_s, self.held, strict=False))


@dataclass(frozen=True, slots=True)
class ParamPrices:
    """Ways to hold parameters on one machine."""

    machine: SearchMachine
    options: SearchOptions

    def ways(
        self,
        info: ParamInfo,
        places: Sequence[int],
        units: Sequence[int] = (),
        *,
        factors: bool = False,
    ) -> Iterator[ParamWay]:
        """Replicated, whole, and each cut by each ratio vector, with the ZeRO levels that differ.

        places: of the cuts. units: of all cuts, () where they are not counted. factors: also whole, with a
        gradient made of factors.
        """
        machine = self.machine
        codes = [REPLICATE]
        if machine.ranks > 1:
            codes += [WHOLE]
            codes += [
                cut_code(place, vertex, len(machine.vertices))
                for place in places
                for vertex in range(len(machine.vertices))
            ]
        for code in codes:
            copies = machine.outer if is_cut(code) else machine.copies
            for zero in self.options.zero if copies > 1 and info.trainable else (0,):
                yield self._way(info, code, zero, copies, self._shares(code, units))
                if factors and code == WHOLE:
                    yield self._way(info, code, zero, copies, self._shares(code, units), factors=True)

    def _way(
        self, info: ParamInfo, code: int, zero: int, copies: int, shares: Shares, *, factors: bool = False
    ) -> ParamWay:
        elements = prod(info.shape)
        size = elements * info.dtype.itemsize
        if not info.trainable:
            return ParamWay(code, zero, 0.0, tuple(size * share for share in shares))
        summed = elements * max(SUM_BYTES, info.dtype.itemsize)
        inside, seconds = self._gradient(code, summed, max(shares))
        if not factors:
            seconds += inside - self._scattered(code, zero, size)
        beside = seconds * self.machine.beside if zero <= ZERO_STATE else 0.0
        if zero:
            seconds += self._zero(code, zero, size, max(shares))
        stored = 1 / copies if zero else 1.0
        update = max(
            lane.rates.update_s([round(size * share * stored)], self.options.optimizer)
            for lane, share in zip(self.machine.lanes, shares, strict=True)
        )
        held = tuple(share * self._held(info, zero, copies) * elements for share in shares)
        return ParamWay(code, zero, seconds + update, held, factors, beside)

    def _shares(self, code: int, units: Sequence[int]) -> Shares:
        """Of each lane."""
        if code < FIRST_CUT:
            return (1.0,) * len(self.machine.lanes)
        place, vertex = cut_of(code, len(self.machine.vertices))
        return self.machine.shares(vertex, units[place] if units else ANY)

    def _gradient(self, code: int, size: float, share: float) -> tuple[float, float]:
        """Seconds of sums over the inner ranks, and over the groups alone."""
        machine = self.machine
        across = machine.piece_reduces.seconds(size * share)
        if code != WHOLE:
            return 0.0, across
        whole = machine.all_reduces.seconds(size)
        return max(0.0, whole - across), min(across, whole)

    def _zero(self, code: int, zero: int, size: float, share: float) -> float:
        """What gathers take: of updated pieces once, or for each use, forward and backward."""
        machine = self.machine
        price: LinkPrice = machine.param_gathers
        if code != WHOLE and machine.outer > 1:
            price = machine.piece_reduces.half()
            size *= share
        return price.seconds(size) * (2 * machine.micro_batches if zero == ZERO_PARAMETERS else 1)

    def _scattered(self, code: int, zero: int, size: float) -> float:
        """Seconds less that a gradient's sum takes if each rank gets its part alone."""
        return self._gradient(code, size, 1.0)[0] / 2 if zero > ZERO_STATE else 0.0

    def _held(self, info: ParamInfo, zero: int, copies: int) -> float:
        """Bytes of an element: the parameter, its gradient, the optimizer's moments."""
        size = info.dtype.itemsize
        parts = (size, max(SUM_BYTES, size), moments_of(self.options.optimizer) * size)
        levels = (ZERO_PARAMETERS, ZERO_GRADIENTS, ZERO_STATE)
        return sum(
            part / copies if zero >= level else part for part, level in zip(parts, levels, strict=True)
        )
