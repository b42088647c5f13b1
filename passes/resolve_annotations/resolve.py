"""Resolves two annotations of one tensor: the cheapest of all ways from one to the other, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...annotations.annotation import Annotation, Shape
from ...annotations.states import PARTIAL
from ...base.comm_plan import CommStep, CostModel
from ...base.dtypes import BYTES
from ...errors import AnnotationError
from .check import checked_pair, element_bytes
from .demand import Conversion
from .moves import StepMove
from .price import FlatCost, Load, loads_of
from .sides import Side, met, side_of
from .steps import steps_of
from .ways import Method, Pricing, Way, ways_of


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

    def moves(self) -> tuple[StepMove, ...]:
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


FLAT = FlatCost()


def resolve(
    source: Annotation | str,
    target: Annotation | str,
    shape: Sequence[int],
    dtype: str = "float32",
    *,
    cost: CostModel = FLAT,
    target_shape: Sequence[int] | None = None,
) -> Resolution:
    """The plan that brings a tensor from one annotation to another; there is one for every well-typed pair.

    source, target: annotations or their texts. shape: global. dtype: by torch name. cost: decides between
    plans. target_shape: the shape that the target was written for, where that is told apart. Raises
    AnnotationError, with both annotations and all that is wrong, where a text can't be read, an annotation
    doesn't fit the shape, the shapes differ, or the target is a pending sum and the source is not.
    """
    shape = tuple(shape)
    shapes = (shape, shape if target_shape is None else tuple(target_shape))
    source, target = checked_pair(source, target, shapes, dtype)
    pricing = Pricing(cost, element_bytes(dtype))
    parts = resolve_sides(side_of(source, shape), side_of(target, shape), pricing)
    tiers = _by_tiers(source, target, shape, pricing, parts)
    return Resolution(source, target, shape, dtype, tiers or parts)


def resolve_sides(source: Side, target: Side, pricing: Pricing) -> tuple[Component, ...]:
    """As `resolve_conversion`."""
    return resolve_conversion(Conversion.between(source, target), pricing)


def resolve_conversion(whole: Conversion, pricing: Pricing) -> tuple[Component, ...]:
    """The cheapest moves for each set of devices that have nothing to do with others."""
    return tuple(_part(part, pricing) for part in _independent(whole))


def _independent(whole: Conversion) -> list[Conversion]:
    """Conversions that share no device."""
    joined = met(cell.holders | cell.needers for cell in whole.cells)
    idle = whole.source.everyone | whole.target.everyone
    for devices in joined:
        idle &= ~devices
    if len(joined) + bool(idle) <= 1:
        return [whole]
    joined.sort(key=lambda found: found & -found)
    return whole.apart([*joined, idle] if idle else joined)  # the idle ones hold nothing


def _part(conversion: Conversion, pricing: Pricing) -> Component:
    """The cheapest way; of equally cheap ones the first."""
    devices = tuple(sorted({*conversion.before, *conversion.after}))
    ways = ways_of(conversion, pricing)
    fitting = [way for way in ways if way.seconds is not None]
    return Component(devices, min(fitting, key=lambda way: way.seconds or 0.0), tuple(ways))


def _by_tiers(
    source: Annotation, target: Annotation, shape: Shape, pricing: Pricing, parts: Sequence[Component]
) -> tuple[Component, ...]:
    """First inside the subgroups, then between them, where that is cheaper; () where it isn't."""
    seconds = max((part.seconds for part in parts), default=0.0)
    between = None if not seconds or _settled(parts, pricing) else _aligned(source, target)
    if between is None:
        return ()
    try:
        middle = side_of(between, shape)
    except AnnotationError:  # the target's states don't fit the rows that the source's subgroups hold
        return ()
    bottom = resolve_sides(side_of(source, shape), middle, pricing)
    top = resolve_sides(middle, side_of(target, shape), pricing)
    own = sum(max(part.seconds for part in tier) for tier in (bottom, top))
    ways = (
        *(way for part in parts for way in part.ways),
        Way(Method.TIERS, lambda: tuple(move for part in (*bottom, *top) for move in part.moves()), own),
    )
    if own >= seconds:
        return ()
    return (Component(tuple(sorted({*source.devices, *target.devices})), ways[-1], ways),)


def _settled(parts: Sequence[Component], pricing: Pricing) -> bool:
    """Whether all reduce at once over ranks that are alike: two tiers move more then."""
    return isinstance(pricing.cost, FlatCost) and all(part.method is Method.ALL_REDUCE for part in parts)


def _aligned(source: Annotation, target: Annotation) -> Annotation | None:
    """The target inside each subgroup, the source between them; None where there are no two such tiers."""
    if source.groups != target.groups or source.hetero == target.hetero or target.is_partial:
        return None
    if not any(states.factor(PARTIAL) > 1 for states in source.states):
        return None
    try:
        return replace(source, states=target.states)
    except AnnotationError:
        return None
