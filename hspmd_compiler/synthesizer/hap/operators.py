"""What a HAP program is made of: values, operators, and the placements that an operator allows.

HAP has one flat group of devices and three placements of a tensor: all of it on each device (WHOLE, its
Identity), slices along one dim (a cut, its Gather), addends (PENDING, its Reduce). A placement is a number,
so that a set of placements is one integer; a cut also says which vector of ratios its slices follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from math import prod

from ...base.source_lines import SourceLine

WHOLE, PENDING = 0, 1
FIRST_CUT = 2
STRIDE = 16
"""Placements of one vector of ratios; tensors have at most STRIDE - FIRST_CUT dims."""


class Leaf(Enum):
    """What a value is that no operator makes."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"


def cut(dim: int, vector: int = 0) -> int:
    """Slices along a dim, of lengths in the ratios of a vector."""
    return FIRST_CUT + dim + STRIDE * vector


def is_cut(placement: int) -> bool:
    return placement >= FIRST_CUT


def following(placement: int, vector: int) -> int:
    """The placement of a rule, which names no vector, with one."""
    return placement + STRIDE * vector if is_cut(placement) else placement


def cut_of(placement: int) -> tuple[int, int]:
    """Dim and vector of a cut."""
    return placement % STRIDE - FIRST_CUT, placement // STRIDE


def placement_text(placement: int) -> str:
    if not is_cut(placement):
        return "whole" if placement == WHOLE else "pending sum"
    dim, vector = cut_of(placement)
    return f"cut along {dim}" + (f", vector {vector}" if vector else "")


def members(placements: int) -> Iterator[int]:
    """The placements in a set."""
    while placements:
        lowest = placements & -placements
        yield lowest.bit_length() - 1
        placements ^= lowest


@dataclass(eq=False, slots=True)
class HapValue:
    """A tensor of the model. exchangeable: HAP may communicate it. segment: the one it is made in.

    anchor: the name by which a strategy says its layout, if it was asked for and has one.
    """

    number: int
    shape: tuple[int, ...]
    name: str
    leaf: Leaf | None = None
    exchangeable: bool = False
    segment: int = 0
    readers: int = 0
    anchor: str = ""

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class HapAlternative:
    """One way to run an operator: placements of its operands and results. shared: its flops are divided."""

    needs: tuple[int, ...]
    gives: tuple[int, ...]
    shared: bool


@dataclass(frozen=True, slots=True)
class HapRule:
    """All ways to run an operator, its forward flops as HAP counts them, and if results may be exchanged."""

    alternatives: tuple[HapAlternative, ...]
    flops: int
    exchangeable: bool


@dataclass(eq=False, slots=True)
class HapOperator:
    """An operator of the model. at: the user's line."""

    kind: str
    rule: HapRule
    inputs: tuple[HapValue, ...]
    outputs: tuple[HapValue, ...]
    segment: int
    at: SourceLine | None


@dataclass(frozen=True, slots=True)
class HapGraph:
    """Operators in the order of the calls. uncounted: parameters that HAP's operators don't have, by name.

    anchors: names of all anchors of the model, if they were asked for.
    """

    values: tuple[HapValue, ...]
    operators: tuple[HapOperator, ...]
    uncounted: tuple[tuple[str, int], ...]
    anchors: tuple[str, ...] = ()

    @property
    def flops(self) -> int:
        """Forward and backward; the backward counts twice the forward."""
        return 3 * sum(operator.rule.flops for operator in self.operators)

    def leaves(self, *kinds: Leaf) -> Iterator[HapValue]:
        return (value for value in self.values if value.leaf in kinds)
