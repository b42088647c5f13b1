"""DistributedStates: how one tensor lies over an ordered group of devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod

from .problems import AnnotationProblem, refuse
from .split import Split


class Unsplit(Enum):
    """Keys that cut no tensor dim; DUPLICATE: equal copies; PARTIAL: addends, their sum is the value."""

    DUPLICATE = "dup"
    PARTIAL = "partial"


DUPLICATE = Unsplit.DUPLICATE
PARTIAL = Unsplit.PARTIAL

StateKey = int | Unsplit


@dataclass(frozen=True, slots=True)
class Duplicate:
    """`parts` equal copies."""

    parts: int

    @property
    def key(self) -> Unsplit:
        """DUPLICATE."""
        return DUPLICATE

    def __str__(self) -> str:
        return f"Dx{self.parts}"


@dataclass(frozen=True, slots=True)
class Partial:
    """`parts` addends."""

    parts: int

    @property
    def key(self) -> Unsplit:
        """PARTIAL."""
        return PARTIAL

    def __str__(self) -> str:
        return f"Px{self.parts}"


Placement = Split | Duplicate | Partial


@dataclass(frozen=True, slots=True)
class DistributedStates:
    """Placements, outermost first: device i of the group has the mixed-radix digits of i as coordinates.

    The last placement varies fastest. A key has at most one placement; the product of all parts is
    the size of the group. No placements: a single device holds everything.
    """

    placements: tuple[Placement, ...] = ()

    def __post_init__(self) -> None:
        refuse(self._problems(), f"states <{self}>")

    @classmethod
    def of(
        cls, factors: Mapping[StateKey, int], order: Sequence[StateKey] | None = None
    ) -> DistributedStates:
        """From parts per key; without `order`: PARTIAL, DUPLICATE, then dims ascending."""
        keys = sorted(factors, key=_rank) if order is None else order
        return cls(tuple(_placement(key, factors[key]) for key in keys))

    @property
    def size(self) -> int:
        """Number of devices."""
        return prod(placement.parts for placement in self.placements)

    @property
    def order(self) -> tuple[StateKey, ...]:
        """Keys, outermost first."""
        return tuple(placement.key for placement in self.placements)

    @property
    def splits(self) -> tuple[Split, ...]:
        """The split placements, outermost first."""
        return tuple([placement for placement in self.placements if isinstance(placement, Split)])

    def split_of(self, dim: int) -> Split | None:
        """The split of a dim, None where it is whole."""
        for placement in self.placements:
            if isinstance(placement, Split) and placement.dim == dim:
                return placement
        return None

    def factor(self, key: StateKey) -> int:
        """Parts of a key, 1 where it has no placement."""
        for placement in self.placements:
            if placement.key == key:
                return placement.parts
        return 1

    def coordinates(self, index: int) -> dict[StateKey, int]:
        """Coordinate per key of the device at `index` of the group."""
        digits: dict[StateKey, int] = {}
        for placement in reversed(self.placements):
            index, digits[placement.key] = divmod(index, placement.parts)
        return digits

    def places(self, key: StateKey) -> tuple[int, ...]:
        """Coordinate of each device of the group along one key; 0 where the key has no placement."""
        inner = self.size
        for placement in self.placements:
            inner //= placement.parts
            if placement.key == key:
                return tuple([index // inner % placement.parts for index in range(self.size)])
        return (0,) * self.size

    def index(self, coordinates: Mapping[StateKey, int]) -> int:
        """Group index of the device at these coordinates; keys left out are 0."""
        index = 0
        for placement in self.placements:
            index = index * placement.parts + coordinates.get(placement.key, 0)
        return index

    def __str__(self) -> str:
        return " ".join(map(str, self.placements)) or "R"

    def _problems(self) -> Iterator[AnnotationProblem]:
        for placement in self.placements:
            if placement.parts < 1:
                yield AnnotationProblem(
                    f"{placement} has {placement.parts} parts", "parts is 1 or more", "leave it out"
                )
        for key in dict.fromkeys(self.order):
            if (times := self.order.count(key)) > 1:
                name = f"dim {key}" if isinstance(key, int) else key.name
                yield AnnotationProblem(
                    f"{name} is placed {times} times",
                    "a key has one placement in a group",
                    "multiply the parts, and order the devices of the group to match",
                )


def _placement(key: StateKey, parts: int) -> Placement:
    if isinstance(key, int):
        return Split(key, parts)
    return Duplicate(parts) if key is DUPLICATE else Partial(parts)


def _rank(key: StateKey) -> tuple[int, int]:
    return (2, key) if isinstance(key, int) else (int(key is DUPLICATE), 0)
