"""What a search says of values: how a value and its gradient are held, what it chose, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Holding(Enum):
    """How the ranks of a stage hold a value, and with it the gradient of that value.

    SPLIT: both are cut. WHOLE: each rank has the value, the gradient is a pending sum. REPLICATE: each
    rank has both. PENDING: the value is a pending sum, each rank has the gradient.
    FACTORS, of parameters: WHOLE, but each rank makes all of the gradient, of factors that ranks gather.
    """

    SPLIT = "S"
    WHOLE = "D"
    REPLICATE = "E"
    PENDING = "P"
    FACTORS = "F"


@dataclass(frozen=True, slots=True)
class ValueType:
    """How one value is held.

    dim: of a SPLIT, the dim that is cut. units: how many equal units it is cut in at most (heads,
    experts, samples), None for elements. vertex: which of the machine's ratio vectors says the pieces.
    repeats: how often the units come one behind another in the dim, as those of q, k and v do in one
    weight: each rank then has a piece of each.
    """

    holding: Holding
    dim: int | None = None
    units: int | None = None
    vertex: int = 0
    repeats: int = 1

    def text(self) -> str:
        """`S2/12`, the vertex behind it where it isn't the first."""
        if self.holding is not Holding.SPLIT:
            return str(self.holding.value)
        units = "" if self.units is None else f"/{self.units}"
        repeats = "" if self.repeats == 1 else f"*{self.repeats}"
        return f"S{self.dim}{units}{repeats}" + (f"@{self.vertex}" if self.vertex else "")


@dataclass(frozen=True, slots=True)
class ParamChoice:
    """How a parameter is stored.

    shares: units of each rank that it is cut in, None where it is whole. zero: the ZeRO level of its copies,
    None: none. price_s: of its gradient's sum, and of gathers under ZeRO; not of gathers of factors.
    """

    name: str
    type: ValueType
    shares: tuple[int, ...] | None
    zero: int | None
    price_s: float


@dataclass(frozen=True, slots=True)
class FoundExchange:
    """A value that changes how it is held, at an anchor; its gradient changes back.

    row: of the value. shares: of the dim that is cut behind it, in units, None where nothing is. forward,
    backward: the collective of each half, "" for none.
    """

    anchor: str
    row: int
    before: ValueType
    after: ValueType
    shares: tuple[int, ...] | None
    price_s: float
    forward: str
    backward: str


@dataclass(frozen=True, slots=True)
class FoundInput:
    """An input of which each rank has a piece. shares: units of each rank."""

    name: str
    type: ValueType
    shares: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FoundProgram:
    """The best program of the space for groups of ranks.

    ranks: of the largest group. by_stage: whether groups have other numbers of ranks, so that each cuts by
    its own shares. exchanges: in row order; a type that holds without an exchange is not among them.
    price_s: of a step, which is compute_s, exchange_s and gradient_s together. bound_s: no program of the
    space is quicker; equal to price_s where the optimum is proven. memory_bytes: of each rank. stats: what
    the search did. considered: per anchor and parameter what the best program with each type there costs.
    whole: rows that no rule splits, which every rank computes whole. made_whole: by anchor the operator of
    such a row that makes its value. recompute: layers that keep their inputs alone. memory_s: what all memory
    was priced at so that it fits, 0 where it fits anyway.
    """

    ranks: int
    params: tuple[ParamChoice, ...]
    exchanges: tuple[FoundExchange, ...]
    price_s: float
    compute_s: float
    exchange_s: float
    gradient_s: float
    bound_s: float
    memory_bytes: tuple[int, ...]
    stats: Mapping[str, int] = field(default_factory=dict)
    considered: Mapping[str, tuple[tuple[ValueType, float], ...]] = field(default_factory=dict, repr=False)
    whole: tuple[int, ...] = ()
    made_whole: Mapping[str, str] = field(default_factory=dict)
    recompute: tuple[int, ...] = ()
    inputs: tuple[FoundInput, ...] = ()
    memory_s: float = 0.0
    by_stage: bool = False
