"""Conversions between layouts, inside a stage or from one stage to another, planned by cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod

from ..annotations.annotation import Addend, HeldIntervals
from ..base.comm_plan import CommKind, CostModel
from ..errors import InternalError
from ..ir.annotated import CommMarker
from ..layout.intervals import Intervals, intersect
from ..layout.layout import Axis, Coordinate, Factor, Layout
from ..layout.layout_rows import held_rows
from ..layout.refine import refine
from ..layout.several_cuts import addends_of, is_plain
from ..rules.rules import is_addend
from .resolve_annotations.check import element_bytes
from .resolve_annotations.demand import Conversion
from .resolve_annotations.in_turn import in_turn
from .resolve_annotations.moves import ReductionMove
from .resolve_annotations.price import seconds_of
from .resolve_annotations.resolve import FLAT, Component, resolve_conversion
from .resolve_annotations.sides import Side, devices_of, make_side
from .resolve_annotations.text import choice_text
from .resolve_annotations.ways import PREFERRED, Method, Pricing, Way


@dataclass(frozen=True, slots=True)
class WantedLayouts:
    """A conversion at one micro-batch.

    ranks: of the stage that has the source. receivers: of another stage that gets the value; (): the same
    ranks do. planned: see CommMarker. cost: what ways are compared by; None: see PREFERRED.
    """

    source: Layout
    target: Layout
    ranks: tuple[int, ...]
    receivers: tuple[int, ...]
    batch: int
    dtype: str
    planned: bool
    cost: CostModel | None = None

    @classmethod
    def of(
        cls,
        marker: CommMarker,
        ranks: Sequence[int],
        receivers: Sequence[int],
        batch: int,
        dtype: str,
        cost: CostModel | None = None,
    ) -> WantedLayouts:
        """What a marker asks for. Without a cost model all ranks are alike, and numbered in their order."""
        if cost is None:
            ranks, receivers = range(len(ranks)), range(len(ranks), len(ranks) + len(receivers))
        ends = tuple(ranks), tuple(receivers)
        return cls(marker.source, marker.target, *ends, batch, dtype, marker.planned, cost)

    @property
    def reduces(self) -> bool:
        """Whether whole values are reduced over all ranks: asked for as such, or preferred for a sum."""
        return self.asked_to_reduce or (self.whole_sum and not self.priced)

    @property
    def asked_to_reduce(self) -> bool:
        """Whether its layout stays what it is, while ranks hold what an operator wants to be reduced."""
        return self.source == self.target and not self.planned and not self.receivers

    @property
    def whole_sum(self) -> bool:
        """Whether it is a pending sum of the whole value that all of its ranks need whole."""
        pending = Axis.TENSOR in self.source.partial and not self.receivers
        return pending and self.target.cut(ranks=True) is None

    @property
    def priced(self) -> bool:
        """Whether the cheapest way is taken."""
        return self.planned or self.cost is not None

    @property
    def pricing(self) -> Pricing:
        """How ways are priced; between stages there is one step."""
        return Pricing(self.cost or FLAT, element_bytes(self.dtype), one_step=bool(self.receivers))

    @property
    def senders(self) -> dict[int, Coordinate]:
        """Where each rank that has the value lies in its stage."""
        return self._at(self.ranks)

    @property
    def places(self) -> dict[int, Coordinate]:
        """Where each rank that gets the value lies in its stage."""
        return self._at(self.receivers or self.ranks)

    def _at(self, ranks: tuple[int, ...]) -> dict[int, Coordinate]:
        return {rank: Coordinate(place, self.batch) for place, rank in enumerate(ranks)}


@cache
def by_cells(source: Layout, target: Layout) -> bool:
    """Whether it is planned whatever the operator: a side has several cuts, or addends are cut anew."""
    return not is_plain(source) or not is_plain(target) or is_addend(target)


@cache
def conversion_of(wanted: WantedLayouts) -> Conversion:
    """Its cells: of whole dims where it is planned, else of the factors that both layouts have in common."""
    source, target = wanted.source, wanted.target
    if wanted.planned:
        held = {rank: held_rows(source, at) for rank, at in wanted.senders.items()}
        needed = {rank: held_rows(target, at) for rank, at in wanted.places.items()}
        return Conversion.between(_side(source, held), _side(target, needed))
    refined = refine(source, target)
    if refined is None:
        raise InternalError(
            f"no common factors of {source} and {target}", fix="report this model and strategy"
        )
    held = {rank: tuple(_rows(a, at) for a, _ in refined.pairs) for rank, at in wanted.senders.items()}
    needed = {rank: tuple(_rows(b, at) for _, b in refined.pairs) for rank, at in wanted.places.items()}
    return Conversion.between(_side(source, held), _side(target, needed))


def _rows(factor: Factor, at: Coordinate) -> Intervals:
    """What a rank has of a factor. Both sides have the same samples, counted from the micro-batch's first."""
    if factor.axis is not Axis.BATCH:
        return factor.held(at)
    length, by_rank = factor.samples(at.batch)
    if by_rank:
        return by_rank[at.rank]
    return ((0, length),) if length else ()


def _side(layout: Layout, held: Mapping[int, HeldIntervals]) -> Side:
    numbers = addends_of(layout, len(held))
    addends = {rank: Addend(0, number) for rank, number in zip(held, numbers, strict=True)}
    dims = len(next(iter(held.values())))
    return make_side(held, addends, dict.fromkeys(held, devices_of(held)), dims)


@cache
def plan(wanted: WantedLayouts) -> tuple[Component, ...]:
    """The way of each set of ranks that have nothing to do with others; the preferred one is of all ranks."""
    conversion = conversion_of(wanted)
    if not wanted.priced or wanted.reduces:
        way = _preferred(wanted, conversion)
        return (Component(wanted.ranks + wanted.receivers, way, (way,)),)
    return _cheapest(wanted, conversion)


def _cheapest(wanted: WantedLayouts, conversion: Conversion) -> tuple[Component, ...]:
    """Each set of ranks in its cheapest way, or all in the preferred one, where that is cheaper."""
    pricing = wanted.pricing
    parts = resolve_conversion(conversion, pricing)
    if wanted.planned:
        return parts
    way = _preferred(wanted, conversion)
    seconds = seconds_of(way.make(), pricing.cost, pricing.element)
    if seconds >= max((part.seconds for part in parts), default=0.0):
        return parts
    way = replace(way, seconds=seconds)
    return (
        Component(
            wanted.ranks + wanted.receivers, way, (way, *(each for part in parts for each in part.ways))
        ),
    )


def _preferred(wanted: WantedLayouts, conversion: Conversion) -> Way:
    """The first of PREFERRED that fits."""
    made = (MADE[method](wanted, conversion) for method in PREFERRED)
    return next(way for way in made if way is not None)


def _reduction(wanted: WantedLayouts, conversion: Conversion) -> Way | None:
    """One all-reduce of whole tensors, also of those without elements."""
    if not (wanted.reduces or wanted.whole_sum):
        return None
    size = prod(wanted.source.local_shape(Coordinate(0, wanted.batch)))
    return Way(Method.ALL_REDUCE, lambda: (ReductionMove((wanted.ranks,), (size,)),))


def _exchange(wanted: WantedLayouts, conversion: Conversion) -> Way | None:
    """One exchange of all ranks."""
    kind, summed = _kind(wanted), is_addend(wanted.source)
    return Way(Method.IN_TURN, lambda: (in_turn(conversion, kind, summed=summed),), kind=kind)


MADE = {Method.ALL_REDUCE: _reduction, Method.IN_TURN: _exchange}


def _kind(wanted: WantedLayouts) -> CommKind:
    """What an exchange of all ranks amounts to."""
    if wanted.receivers:
        return CommKind.SEND_RECV
    if is_addend(wanted.source):
        pending = Axis.TENSOR in wanted.source.partial
        return CommKind.REDUCE_SCATTER if pending else CommKind.ALL_TO_ALL
    return CommKind.ALL_GATHER if wanted.target.cut(ranks=True) is None else CommKind.ALL_TO_ALL


def plan_text(wanted: WantedLayouts) -> str:
    """The ways that ranks take, the price of each, and of those that they don't take."""
    parts = plan(wanted)
    if wanted.priced and not wanted.reduces:
        return " | ".join(dict.fromkeys(map(choice_text, parts)))
    way, pricing = parts[0].way, wanted.pricing
    priced = replace(way, seconds=seconds_of(way.make(), pricing.cost, pricing.element))
    others = () if wanted.asked_to_reduce else resolve_conversion(conversion_of(wanted), pricing)
    return choice_text(Component(parts[0].devices, priced, (priced, *_together(others, way.method))))


def _together(parts: Sequence[Component], but: Method) -> Iterator[Way]:
    """Ways as all ranks would take them: those that can't take one take their own cheapest."""
    for method in dict.fromkeys(way.method for part in parts for way in part.ways if way.seconds):
        own = [[way for way in part.ways if way.method is method and way.seconds] for part in parts]
        seconds = [
            found[0].seconds if found else part.seconds for found, part in zip(own, parts, strict=True)
        ]
        if method is not but:
            yield Way(method, tuple, max(each or 0.0 for each in seconds))


@cache
def is_local(source: Layout, target: Layout, ranks: int, batches: int) -> bool:
    """Whether every rank holds settled what the target gives it, of every micro-batch."""
    if is_addend(source) or is_addend(target):
        return False
    places = (Coordinate(rank, batch) for rank in range(ranks) for batch in range(batches))
    return all(
        intersect(have, need) == need
        for at in places
        for have, need in zip(held_rows(source, at), held_rows(target, at), strict=True)
    )
