"""A switch between two strategies as values: which elements go from whom to whom. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..base.comm_plan import Box

VALUE = "value"
COPY = "copy"
GRAD = "grad"
"""Kinds of state beside the moments, which have torch's names.

VALUE: a parameter or buffer in the type that is trained and saved. COPY: the local copy of a parameter in the
type that segments read, where that is another. GRAD: the synchronised gradient.
"""


class SwitchScope(Enum):
    """What a plan moves.

    STATE: all that training goes on from. PARAMS: what the target's segments read, for a step whose optimizer
    state stays. GRADS: synchronised gradients, back to where the optimizer's state is.
    """

    STATE = "state"
    PARAMS = "params"
    GRADS = "grads"


@dataclass(frozen=True, slots=True)
class StatePart:
    """Elements of one parameter or buffer: boxes of the whole, viewed as `view`."""

    name: str
    view: tuple[int, ...]
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """Elements [low, high) of a class go from one world rank to another.

    is_relay: the source has them only by another move of this class.
    """

    source: int
    target: int
    low: int
    high: int
    is_relay: bool = False


@dataclass(frozen=True, slots=True)
class SwitchClass:
    """All elements with the same holders before and the same needers after, in world ranks, ascending.

    kinds: what moves of each element, in this order. element_bytes: of all kinds together. Elements are
    numbered through the parts, box after box, row-major. A needer that is a holder keeps its own; every other
    needer gets each element by exactly one move.
    """

    kinds: tuple[str, ...]
    element_bytes: int
    holders: tuple[int, ...]
    needers: tuple[int, ...]
    parts: tuple[StatePart, ...]
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class SwitchPlan:
    """The switch of all world ranks from one strategy, by name, to another."""

    source: str
    target: str
    scope: SwitchScope
    classes: tuple[SwitchClass, ...]

    def orphans(self) -> tuple[SwitchClass, ...]:
        """Classes that somebody needs and nobody holds."""
        return tuple(each for each in self.classes if each.needers and not each.holders)
