"""A resolved pair: the way that was chosen, and why."""

from __future__ import annotations

from dataclasses import dataclass

from ...annotations.annotation import Annotation, Shape
from ...base.comm_plan import CommStep
from ...base.dtypes import BYTES
from .moves import Move
from .price import Load, loads_of
from .steps import steps_of
from .ways import Method, Way


@dataclass(frozen=True, slots=True)
class Component:
    """Devices that have nothing to do with others: the way they take, and all that were looked at."""

    devices: tuple[int, ...]
    way: Way
    ways: tuple[Way, ...]

    @property
    def method(self) -> Method:
        """How they come from one annotation to the other."""
        return self.way.method

    @property
    def seconds(self) -> float:
        """By the cost model."""
        return self.way.seconds or 0.0

    def moves(self) -> tuple[Move, ...]:
        """What they do, in order."""
        return self.way.make()


@dataclass(frozen=True, slots=True)
class Resolution:
    """The plan for one pair of annotations of one tensor."""

    source: Annotation
    target: Annotation
    shape: Shape
    dtype: str
    parts: tuple[Component, ...]

    @property
    def seconds(self) -> float:
        """By the cost model; parts go on at once."""
        return max((part.seconds for part in self.parts), default=0.0)

    def loads(self) -> dict[int, Load]:
        """Bytes that each rank sends and receives; ranks that do neither are left out."""
        return loads_of((move for part in self.parts for move in part.moves()), BYTES[self.dtype])

    def steps(self) -> dict[int, tuple[CommStep, ...]]:
        """What each rank does, in its order. A rank without steps keeps what it has.

        Ids count from 0, in one order on all ranks. A rank that the target doesn't name has nothing after.
        """
        return steps_of([part.moves() for part in self.parts], self.dtype)
