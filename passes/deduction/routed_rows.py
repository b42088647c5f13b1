"""Rows of a mixture of experts lie at the owners of their experts, from the first product to the last.

The layout of such rows says which routing shares them out, not which rows a rank has: that is data. Rows come
from where ranks hold them, their home, by an exchange whose sizes are counted once for all values of the
routing, and go back by the opposite one. Where all ranks hold all rows, each takes its own, and what comes
back are addends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ...base.comm_plan import Combine, Counted
from ...errors import InternalError
from ...ir.annotated import COMM, AnnotatedValue, CommMarker, PerCoordinate, Routing
from ...ir.graph import refs_of
from ...layout.intervals import Intervals, Sets
from ...layout.layout import Axis, Dim, Factor, Layout, Routed, home_of, make_layout, routing_of, whole
from ...layout.shares import assign_units
from ...layout.view_maps import flat_factor
from ...rules.in_code.pointwise_rules import operand_layout
from ...rules.rules import contrib_factor, is_addend, local_sizes, uncut

if TYPE_CHECKING:
    from .deducer import Deducer

SELECT, TURN = "aten.index_select.default", "aten.transpose.int"


@dataclass(frozen=True, slots=True)
class RowRouting:
    """One routing in one stage. home: how ranks hold rows before. at_owners: how they lie at the owners.

    order, counts: of the exchange. places: of a rank's rows among those of all, where each has all.
    """

    home: Dim
    at_owners: Dim
    order: AnnotatedValue | None = None
    counts: AnnotatedValue | None = None
    places: AnnotatedValue | None = None


@dataclass(slots=True)
class RowRoutings:
    """Those of a pipeline. numbers: by the row that names experts, stage and owners. made: by number.
    returned: rows that came back from the owners of their experts, by value and stage."""

    numbers: dict[tuple[int, int, Sets], int] = field(default_factory=dict)
    made: list[RowRouting] = field(default_factory=list)
    returned: dict[tuple[int, int], AnnotatedValue] = field(default_factory=dict)


def dim_at_owners(
    deducer: Deducer, ids: int, rows: AnnotatedValue, experts: AnnotatedValue, owners: Sets
) -> Dim | None:
    """How rows lie that go to the experts which a row of the graph names; None where they go nowhere.

    The routing is made where it is first needed.
    """
    if not deducer.exchanges_rows:
        return None
    deducer.memo.looked = True
    key = (ids, deducer.stage, owners)
    known = deducer.routings
    if key not in known.numbers:
        known.numbers[key] = number = len(known.made)
        home = _home(deducer, rows)
        known.made.append(_made(deducer, number, home, experts, owners))
        deducer.result.routings.append(Routing(ids, home, owners))
    return known.made[known.numbers[key]].at_owners


def _home(deducer: Deducer, rows: AnnotatedValue) -> Dim:
    """How ranks hold the rows; none holds some that others have, too, unless all have all."""
    layout = make_layout(rows.layout.dims[:1])
    if is_routed(layout):  # of another routing
        layout = home_of(layout)
    cut = layout.cut(ranks=True)
    if cut is None or contrib_factor(layout) is not None or not _is_exact(layout, len(deducer.stage_devices)):
        return uncut(layout, ranks=True).dims[0]
    return layout.dims[0]


def _is_exact(layout: Layout, ranks: int) -> bool:
    """Whether each row is at one rank."""
    cut = layout.cut(ranks=True)
    assert cut is not None and cut[1].sets is not None, "of rows that ranks cut"
    return sum(high - low for held in cut[1].sets for low, high in held) == cut[1].size


def _made(deducer: Deducer, number: int, home: Dim, experts: AnnotatedValue, owners: Sets) -> RowRouting:
    at_owners = _at_owners(number, home, owners)
    layout = make_layout((home,))
    experts = deducer.convert(experts, layout)
    if layout.cut(ranks=True) is None:
        mine = PerCoordinate(lambda at: at.rank)
        even = local_sizes(make_layout((at_owners,)), 0)
        args = (experts, owners, mine, even)
        places = deducer.emit("hspmd.own_rows", args, make_layout((at_owners,)), dtype=torch.int64)
        return RowRouting(home, at_owners, places=places)
    leaving = deducer.emit("hspmd.expert_order", (experts, owners), layout, dtype=torch.int64)
    ranks = len(owners)
    sets = tuple(((place, place + 1),) for place in range(ranks))
    each = make_layout(((Factor(ranks, Axis.TENSOR, sets),), (Factor(ranks),)))
    sent = deducer.emit("hspmd.expert_counts", (experts, owners), each, dtype=torch.int64)
    counts = deducer.convert(sent, whole((ranks, ranks)))
    counts = deducer.emit("hspmd.host_counts", (counts,), counts.layout, dtype=torch.int64)
    return RowRouting(home, at_owners, leaving, counts)


def _at_owners(number: int, home: Dim, owners: Sets) -> Dim:
    """Rows of each micro-batch in an even load: as many for each expert."""
    rows = flat_factor(uncut(make_layout((home,)), ranks=True).dims[0])
    weights = [sum(high - low for low, high in held) for held in owners]
    pieces = (((0, rows.size),),) if rows.sets is None else rows.sets
    shared = [_shared(held, weights) for held in dict.fromkeys(pieces)]
    by_rank = tuple(
        tuple(sorted(interval for held in shared for interval in held[rank])) for rank in range(len(owners))
    )
    routed = Routed(number, rows.size, home)
    if rows.axis is None:
        return (Factor(rows.size, Axis.TENSOR, by_rank, routed=routed),)
    return (Factor(rows.size, rows.axis, rows.sets, by_rank=by_rank, routed=routed),)


def _shared(held: Intervals, weights: list[int]) -> list[Intervals]:
    """The intervals of each, one after the other."""
    left = list(held)
    found: list[Intervals] = []
    for count in assign_units(sum(high - low for low, high in held), weights):
        own: list[tuple[int, int]] = []
        while count:
            low, high = left.pop(0)
            taken = min(count, high - low)
            own.append((low, low + taken))
            count -= taken
            if low + taken < high:
                left.insert(0, (low + taken, high))
        found.append(tuple(own))
    return found


def is_routed(layout: Layout) -> bool:
    """Whether rows lie at the owners of their experts."""
    return routing_of(layout) is not None


def rerouted(deducer: Deducer, value: AnnotatedValue, target: Layout) -> AnnotatedValue:
    """A conversion of rows that lie at the owners of their experts, or are to."""
    deducer.memo.looked = True
    found = routing_of(value.layout)
    if found is not None:
        return deducer.convert(at_home(deducer, value), target)
    wanted = routing_of(target)
    assert wanted is not None, "one of both is routed"
    dim, routed = wanted
    if dim:
        turned = deducer.convert(_transposed(deducer, value, dim), _exchanged(target, dim))
        return _transposed(deducer, turned, dim)
    made = _made_there(deducer, value, target)
    if made is not None:
        return made
    routing = deducer.routings.made[routed.key]
    value = deducer.convert(value, make_layout((routing.home, *target.dims[1:]), target.partial))
    return _to_owners(deducer, value, routing, target)


def _made_there(deducer: Deducer, value: AnnotatedValue, target: Layout) -> AnnotatedValue | None:
    """A product whose factors are at the owners already is made there once more, in place of an exchange."""
    if value.logical is None or is_addend(value.layout):
        return None
    row = deducer.graph.rows[value.logical]
    refs = list(refs_of(row.args))
    if row.op != "aten.mul.Tensor" or len(refs) != 2:
        return None
    there = []
    for ref in refs:
        factor = deducer.values.get((ref.id, deducer.stage))
        if not isinstance(factor, AnnotatedValue):
            return None
        layout = operand_layout(factor, target.dims, target.shape)
        there.append(deducer.converted.get((factor.id, deducer.stage, layout)))
    if any(each is None for each in there):
        return None
    return deducer.emit(row.op, (*there, *row.args[2:]), target, dtype=value.dtype)


def at_home(deducer: Deducer, value: AnnotatedValue) -> AnnotatedValue:
    """Rows back from the owners of their experts; other values as they are."""
    found = routing_of(value.layout)
    if found is None:
        return value
    dim, key = found[0], (value.id, deducer.stage)
    if key not in deducer.routings.returned:
        first = _transposed(deducer, value, dim) if dim else value
        back = _back(deducer, first)
        deducer.routings.returned[key] = _transposed(deducer, back, dim) if dim else back
    return deducer.routings.returned[key]


def _transposed(deducer: Deducer, value: AnnotatedValue, dim: int) -> AnnotatedValue:
    layout = _exchanged(value.layout, dim)
    return deducer.emit(TURN, (value, 0, dim), layout, dtype=value.dtype)


def _exchanged(layout: Layout, dim: int) -> Layout:
    dims = list(layout.dims)
    dims[0], dims[dim] = dims[dim], dims[0]
    return layout.with_dims(dims)


def _to_owners(
    deducer: Deducer, value: AnnotatedValue, routing: RowRouting, target: Layout
) -> AnnotatedValue:
    if routing.places is not None:
        return deducer.emit(SELECT, (value, 0, routing.places), target, dtype=value.dtype)
    packed = deducer.emit(SELECT, (value, 0, routing.order), value.layout, dtype=value.dtype)
    return _moved(deducer, packed, routing, target, Counted.OUT)


def _back(deducer: Deducer, value: AnnotatedValue) -> AnnotatedValue:
    found = routing_of(value.layout)
    assert found is not None, "only rows at their owners go back"
    routing = deducer.routings.made[found[1].key]
    layout = home_of(value.layout)
    if routing.places is not None:
        args = (value, routing.places, local_sizes(layout, 0))
        return deducer.emit("hspmd.rows_placed", args, layout, dtype=value.dtype)
    packed = _moved(deducer, value, routing, layout, Counted.BACK)
    return deducer.emit("hspmd.rows_back", (packed, routing.order), layout, dtype=value.dtype)


def _moved(
    deducer: Deducer, value: AnnotatedValue, routing: RowRouting, target: Layout, counted: Counted
) -> AnnotatedValue:
    stage = deducer.stage
    if value.stage != stage:
        raise InternalError("rows at their experts are exchanged in their own stage")
    marker = CommMarker(value.layout, target, Combine.COPY, stage, stage, counted=counted)
    return deducer.emit(COMM, (value, routing.counts), target, marker=marker, dtype=value.dtype)
