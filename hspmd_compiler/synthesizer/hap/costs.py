"""HAP's price of a program, in its own units.

Price of a step = sum over operators of [ flops of the slowest device / its speed + volume of the device
that exchanges most / bandwidth ], with all loads and exchanges of an operator's operands in its own term.
Backward counts twice the forward's flops. No latency, no overlap, no memory, one bandwidth for each kind
of collective; n devices exchange n times the largest slice, as padded collectives do.

What that leaves out, kept because it is what HAP counts:
- bandwidths are bytes a second, volumes are elements: in float32 communication is 4 times too cheap;
- a parameter whose dim has length 1 is "cut" along it for nothing, though each device then holds all of it
  and the gradient needs an all-reduce;
- weights of layer norms are no operands: their gradients are exchanged for nothing;
- a buffer that is whole pays as if it had a gradient;
- slices have any real length.

Prices of whole slices are the same with each cut dim shared out in units, by `layout.shares.assign_units`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import truediv

from ...errors import OptionError
from ...layout.shares import assign_units
from ..ratios import Vector
from .operators import PENDING, WHOLE, HapValue, Leaf, cut_of, is_cut

Seconds = tuple[float, ...]
"""On each lane: a device of each kind, or each device."""

BYTES_PER_ELEMENT = 4


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """What a collective moves in a second, as HAP's profiler measures it: bytes; elements, as HAP uses it."""

    all_gather: float
    all_reduce: float
    reduce_scatter: float
    all_to_all: float

    def scaled(self, factor: float) -> Bandwidths:
        return Bandwidths(
            self.all_gather * factor,
            self.all_reduce * factor,
            self.reduce_scatter * factor,
            self.all_to_all * factor,
        )


@dataclass(frozen=True)
class HapMachine:
    """Devices, fastest kind first. kinds: (speed, how many of it)."""

    kinds: tuple[tuple[float, int], ...]
    bandwidths: Bandwidths

    @classmethod
    def of(cls, speeds: Sequence[float], bandwidths: Bandwidths) -> HapMachine:
        bad = [(f"device {index}", f"speed {speed}") for index, speed in enumerate(speeds) if not speed > 0]
        if bad or not speeds:
            raise OptionError(
                "HAP has no price for these devices",
                details=bad or [("devices", "none")],
                rule="speeds are above 0: the slowest device decides what a whole operator takes",
                fix="leave out devices that compute nothing",
            )
        kinds = sorted(set(speeds), reverse=True)
        return cls(tuple((speed, list(speeds).count(speed)) for speed in kinds), bandwidths)

    @cached_property
    def devices(self) -> int:
        return sum(count for _, count in self.kinds)

    @cached_property
    def slowest(self) -> float:
        return self.kinds[-1][0]

    @cached_property
    def total_speed(self) -> float:
        return sum(speed * count for speed, count in self.kinds)

    @property
    def proportional(self) -> Vector:
        """Each device its share of the summed speeds."""
        return tuple(speed / self.total_speed for speed, _ in self.kinds)

    @property
    def even(self) -> Vector:
        return (1 / self.devices,) * len(self.kinds)


@dataclass(frozen=True)
class HapPrices:
    """Seconds of what programs consist of, for given vectors of ratios.

    parameters: the vector of parameters that are gathered where they are used (HAP's extra_ps), None: those
    that are whole are replicas. free_ones: a parameter's dim of length 1 is cut for nothing, as HAP does.
    whole: slices have whole lengths; 16 experts on two fast and six slow devices are not 2.99 and 1.67 each.
    """

    machine: HapMachine
    vectors: tuple[Vector, ...]
    parameters: Vector | None = None
    free_ones: bool = True
    whole: bool = False
    _shares: dict[tuple[int, Vector], Vector] = field(default_factory=dict, compare=False, repr=False)

    def compute(self, flops: float, by: tuple[HapValue, int] | None) -> float:
        """Of an operator's forward flops, with its backward. by: whose slices share them out, and which."""
        if by is None:
            return 3 * flops * (1 / self.machine.slowest)
        slowest: float = max(map(truediv, self._of_cut(*by), self._speeds))
        return 3 * flops * slowest

    def shares(self, length: int, vector: Vector) -> Vector:
        """Each lane's part of a dim of this length."""
        if not self.whole:
            return vector
        key = length, vector
        if key not in self._shares:
            counts = [count for _, count in self.machine.kinds]
            weights = [share for share, count in zip(vector, counts, strict=True) for _ in range(count)]
            self._shares[key] = tuple(held / length for held in assign_units(length, weights))
        return self._shares[key]

    def _of_cut(self, value: HapValue, placement: int) -> Vector:
        dim, vector = cut_of(placement)
        return self.shares(value.shape[dim], self.vectors[vector])

    @cached_property
    def _speeds(self) -> Vector:
        """Of each lane."""
        kinds = self.machine.kinds
        return tuple(speed for speed, count in kinds for _ in range(count if self.whole else 1))

    def load(self, value: HapValue, placement: int) -> Seconds | None:
        """A leaf brought to a placement, with what its gradient costs; None: there is no such."""
        links = self.machine.bandwidths
        if placement == PENDING:
            return None
        if is_cut(placement):
            alone = value.shape[cut_of(placement)[0]] == 1 and value.leaf is Leaf.PARAMETER
            return None if alone and not self.free_ones else self._nothing
        if value.leaf is Leaf.INPUT:
            return self._nothing
        if self.parameters is None or value.shape[0] == 1:
            return (value.elements / links.all_reduce,) * len(self._nothing)
        shares = self.shares(value.shape[0], self.parameters)
        return self._volume(value, shares, 1 / links.all_gather + 1 / links.reduce_scatter)

    def exchange(self, value: HapValue, before: int, after: int) -> Seconds | None:
        """From one placement to another, and the gradient back; None: there is no such."""
        links = self.machine.bandwidths
        both_ways = 1 / links.all_gather + 1 / links.reduce_scatter
        if after == PENDING:
            return None
        if before == WHOLE:
            return self._nothing
        if before == PENDING and after == WHOLE:
            return (2 * value.elements / links.all_reduce,) * len(self._nothing)
        if before == PENDING or after == WHOLE:
            shares = self._of_cut(value, after if before == PENDING else before)
            return self._volume(value, shares, both_ways)
        return self._volume(value, self._between(value, before, after), 2 / links.all_to_all)

    def _between(self, value: HapValue, before: int, after: int) -> Vector:
        """What a device gives or gets, in shares: to another dim the larger slice, in a dim what moves."""
        pairs = zip(self._of_cut(value, before), self._of_cut(value, after), strict=True)
        same = cut_of(before)[0] == cut_of(after)[0]
        return tuple(abs(a - b) if same else max(a, b) for a, b in pairs)

    def _volume(self, value: HapValue, shares: Vector, seconds: float) -> Seconds:
        whole = value.elements * self.machine.devices * seconds
        return tuple(whole * share for share in shares)

    @cached_property
    def _nothing(self) -> Seconds:
        return (0.0,) * len(self._speeds)
