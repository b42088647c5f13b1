"""Conversions between layouts: what is local becomes local rows, the rest a communication marker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ...base.comm_plan import Combine
from ...errors import InternalError
from ...ir.annotated import COMM, AnnotatedValue, CommMarker, PerCoordinate
from ...ir.graph import Row
from ...ir.own_names import is_marker
from ...layout.intervals import Intervals, intersect, union, within
from ...layout.layout import Axis, Coordinate, Dim, Factor, Layout, make_layout
from ...layout.layout_rows import held_rows
from ...layout.refine import Refined, refine
from ...layout.several_cuts import is_plain, without_ranks
from ...layout.view_maps import held_once
from ...rules.in_code.view_rules import invert, reemit
from ...rules.rules import PULLS, at_first, contrib_factor, is_addend, local_shape, uncut
from ..resolve_layouts import by_cells, is_local
from .batch_values import gather_batch
from .gathered_wishes import note_gathered
from .routed_rows import is_routed, rerouted

if TYPE_CHECKING:
    from .deducer import Deducer

TAKE = "hspmd.take"


def convert(deducer: Deducer, value: AnnotatedValue, target: Layout) -> AnnotatedValue:
    """`value` in layout `target`: computed so if pure, else cut locally, else communicated."""
    if is_routed(value.layout) or is_routed(target):
        return rerouted(deducer, value, target)
    if not is_plain(value.layout) or not is_plain(target):
        return _of_several_cuts(deducer, value, target)
    pulled = _pull(deducer, value, target)
    if pulled is not None:
        return pulled
    value = _convert_batch(deducer, value, target)
    if value.layout == target:
        return value
    local = _convert_local(deducer, value, target)
    if local is not None:
        return local
    moved = _before_layout_operator(deducer, value, target)
    return moved if moved is not None else _communicate(deducer, value, target)


def _pull(deducer: Deducer, value: AnnotatedValue, target: Layout) -> AnnotatedValue | None:
    """A pure value is computed in the target's cut where its operator can be."""
    if not value.pure or value.logical is None or value.layout.partial or target.partial:
        return None
    if value.layout.cut(ranks=True) is not None or contrib_factor(target) is not None:
        return None
    row = deducer.graph.rows[value.logical]
    pull = PULLS.get(row.op)
    if pull is None or not _batch_is_finer(value.layout, target):
        return None
    return deducer.within(row, value.stage, lambda: pull(deducer, row, target))


def _batch_is_finer(layout: Layout, target: Layout) -> bool:
    own, wanted = layout.cut(ranks=False), target.cut(ranks=False)
    return own is None or own == wanted


def _convert_batch(deducer: Deducer, value: AnnotatedValue, target: Layout) -> AnnotatedValue:
    """Cut over the batch what is whole; the other way, all micro-batches add up to the whole batch."""
    if Axis.BATCH in value.layout.partial and Axis.BATCH not in target.partial:
        value = deducer.step_value(value)
    if Axis.BATCH in target.partial and Axis.BATCH not in value.layout.partial:
        layout = make_layout(value.layout.dims, value.layout.partial | {Axis.BATCH})
        value = deducer.emit("hspmd.zero_unless", (value, at_first(Axis.BATCH)), layout, dtype=value.dtype)
    own, wanted = value.layout.cut(ranks=False), target.cut(ranks=False)
    if own == wanted or _same_samples(value.layout, target):
        return value
    if own is not None:
        if wanted is not None and refine(value.layout, target) is None and value.layout.cut(ranks=True):
            value = deducer.convert(value, uncut(_settled(value.layout), ranks=True))
            return _convert_batch(deducer, value, target)
        if wanted is None or refine(value.layout, target) is None or not _same_batch(value.layout, target):
            deducer.memo.looked = True
            return _convert_batch(deducer, gather_batch(deducer, value), target)
        return value
    step = _with_batch_cut(value.layout, target)
    if step is None:
        value = deducer.convert(value, uncut(value.layout, ranks=True))
        step = _with_batch_cut(value.layout, target)
    if step is None:
        raise InternalError(
            f"no common factors of {value.layout.shape}", fix="report this model and strategy"
        )
    return _take(deducer, value, step)


def _same_samples(layout: Layout, target: Layout) -> bool:
    """Whether ranks alone cut them differently, who share samples in one of them."""
    shared = any(factor.by_rank is not None for factor in (*layout.factors(), *target.factors()))
    return shared and without_ranks(layout).dims == without_ranks(target).dims


def _same_batch(layout: Layout, target: Layout) -> bool:
    refined = refine(layout, target)
    return refined is not None and all(
        a.sets == b.sets for a, b in refined.pairs if Axis.BATCH in (a.axis, b.axis)
    )


def _with_batch_cut(layout: Layout, target: Layout) -> Layout | None:
    """The layout with the target's batch cut added."""
    refined = refine(layout, target)
    if refined is None or any(src.axis and dst.axis is Axis.BATCH for src, dst in refined.pairs):
        return None
    factors = [dst.cut_by(ranks=False) or src for src, dst in refined.pairs]
    return make_layout(_regroup(factors, refined), layout.partial)


def _regroup(factors: list[Factor], refined: Refined) -> tuple[Dim, ...]:
    dims: list[Dim] = []
    position = 0
    for count in refined.counts:
        dims.append(tuple(factors[position : position + count]))
        position += count
    return tuple(dims)


def _convert_local(deducer: Deducer, value: AnnotatedValue, target: Layout) -> AnnotatedValue | None:
    """The conversion by local rows alone (keep, cut, pad, count once); None where data must move."""
    source = value.layout
    if not is_addend(source) and Axis.TENSOR in target.partial:
        return _to_pending(deducer, value, target)
    if source.partial != target.partial and not (contrib_factor(source) and Axis.TENSOR in target.partial):
        return None
    refined = refine(source, target)
    if refined is None:
        return None
    if contrib_factor(target) is not None or Axis.TENSOR in target.partial:
        return _pad(deducer, value, target, refined)
    if contrib_factor(source) is not None:
        return None
    return _take(deducer, value, target) if _holds_all(refined) else None


def _to_pending(deducer: Deducer, value: AnnotatedValue, target: Layout) -> AnnotatedValue | None:
    """A settled value as a pending sum: its pieces padded with zeros, or kept at the first rank."""
    cut = value.layout.cut(ranks=True)
    if cut is not None:
        value = deducer.convert(value, _first_holders(value.layout))
        refined = refine(value.layout, target)
        return None if refined is None else _pad(deducer, value, target, refined)
    return deducer.emit("hspmd.zero_unless", (value, at_first(Axis.TENSOR)), target, dtype=value.dtype)


def _first_holders(layout: Layout) -> Layout:
    return make_layout(tuple(tuple(map(held_once, dim)) for dim in layout.dims), layout.partial)


def _holds_all(refined: Refined) -> bool:
    """Whether every rank already holds what the target gives it."""
    for src, dst in refined.pairs:
        if src == dst or src.of_ranks is None:
            continue
        if dst.of_ranks is None:
            return False
        if any(intersect(b, a) != union(b) for a, b in zip(src.of_ranks, dst.of_ranks, strict=True)):
            return False
    return True


def _take(deducer: Deducer, value: AnnotatedValue, target: Layout) -> AnnotatedValue:
    """Cut locally, one factor at a time."""
    refined = refine(value.layout, target)
    assert refined is not None
    changed = [index for index, (src, dst) in enumerate(refined.pairs) if src.pieces != dst.pieces]
    for index in changed:
        pairs = list(refined.pairs)
        dst = pairs[index][1]
        factors = [dst if i == index else pair[0] for i, pair in enumerate(pairs)]
        layout = make_layout(_regroup(factors, refined), value.layout.partial)
        value = _take_factor(deducer, value, layout, refined, index)
        pairs[index] = (dst, dst)
        refined = replace(refined, pairs=tuple(pairs))
    return value


def _take_factor(
    deducer: Deducer, value: AnnotatedValue, layout: Layout, refined: Refined, index: int
) -> AnnotatedValue:
    src, dst = refined.pairs[index]
    by_position = Axis.BATCH in (src.axis, dst.axis)
    intervals = PerCoordinate(lambda at: within(src.held(at), dst.held(at)), by_position)
    dim = _dim_of(refined, index)
    if refined.counts[dim] == 1:
        return deducer.emit(TAKE, (value, dim, intervals), layout, dtype=value.dtype)
    view = PerCoordinate(lambda at: refined.view(at, source=True))
    args = (value, view, index, intervals, local_shape(layout))
    return deducer.emit("hspmd.factor_take", args, layout, dtype=value.dtype)


def _dim_of(refined: Refined, index: int) -> int:
    """The dim that the factor at `index` belongs to."""
    seen = 0
    for dim, count in enumerate(refined.counts):
        seen += count
        if index < seen:
            return dim
    raise InternalError("a factor outside every dim", fix="report this model and strategy")


def _pad(deducer: Deducer, value: AnnotatedValue, target: Layout, refined: Refined) -> AnnotatedValue | None:
    """Addends get room for the target's elements, zeros where they hold nothing."""
    changed = [index for index, (src, dst) in enumerate(refined.pairs) if src != dst]
    if len(changed) != 1:
        return None
    index = changed[0]
    src, dst = refined.pairs[index]
    if src.of_ranks is None:
        return _pad_whole(deducer, value, target)
    room = dst.of_ranks if dst.of_ranks is not None else tuple(((0, dst.size),) for _ in src.of_ranks)
    if any(intersect(a, b) != a for a, b in zip(src.of_ranks, room, strict=True)):
        return None
    if not src.contrib:
        value = deducer.convert(value, _first_holders(value.layout))
        again = refine(value.layout, target)
        if again is None:
            return None
        refined, src = again, again.pairs[index][0]
    return _place(deducer, value, target, refined, index)


def _pad_whole(deducer: Deducer, value: AnnotatedValue, target: Layout) -> AnnotatedValue | None:
    """A whole value as addends: each element at its first holder, then padded."""
    dims = tuple(tuple(factor.copies() for factor in dim) for dim in target.dims)
    thinned = _first_holders(make_layout(dims, value.layout.partial))
    return deducer.convert(deducer.convert(value, thinned), target)


def _place(
    deducer: Deducer, value: AnnotatedValue, target: Layout, refined: Refined, index: int
) -> AnnotatedValue:
    src, dst = refined.pairs[index]
    by_position = src.by_rank is not None
    size = PerCoordinate(dst.length)
    intervals = PerCoordinate(lambda at: within(dst.held(at), src.held(at)), by_position)
    view = PerCoordinate(lambda at: refined.view(at, source=True))
    args = (value, view, index, size, intervals, local_shape(target))
    return deducer.emit("hspmd.place", args, target, dtype=value.dtype)


def _before_layout_operator(deducer: Deducer, value: AnnotatedValue, target: Layout) -> AnnotatedValue | None:
    """A conversion of a view is done on its operand, so that all its views share one."""
    if value.via is None:
        return None
    row, operand = value.via
    wanted = invert(row, operand.layout, target)
    if wanted is None or operand.stage != value.stage:
        return None
    found = reemit(deducer, row, deducer.convert(operand, wanted), target)
    deducer.renamed[found.id] = row.id
    return found


def check_takes_several_cuts(op: str, row: Row, layouts: Iterable[Layout]) -> None:
    """Only what moves or cuts a value may meet a layout of several cuts: operators' rules know one."""
    if op not in (COMM, TAKE) and not is_marker(op) and not all(map(is_plain, layouts)):
        raise InternalError(
            f"{op} meets a value that ranks cut in several ways",
            at=row.where,
            fix="report this model and strategy",
        )


def _of_several_cuts(deducer: Deducer, value: AnnotatedValue, target: Layout) -> AnnotatedValue:
    """A conversion that only hand-written annotations need: cut dim by dim, else communicated.

    What the batch axis does to the value stays as it is.
    """
    if not is_local(value.layout, target, len(deducer.stage_devices), max(1, len(deducer.placement.batch))):
        return _marked(deducer, value, target)
    for dim in range(len(target.dims)):
        cut = PerCoordinate(partial(_rows_kept, value.layout, target, dim))
        if value.layout.dims[dim] != target.dims[dim]:
            dims = (*target.dims[: dim + 1], *value.layout.dims[dim + 1 :])
            value = deducer.emit(TAKE, (value, dim, cut), value.layout.with_dims(dims), dtype=value.dtype)
    return value


def _rows_kept(source: Layout, target: Layout, dim: int, at: Coordinate) -> Intervals:
    return within(held_rows(source, at)[dim], held_rows(target, at)[dim])


def _communicate(deducer: Deducer, value: AnnotatedValue, target: Layout) -> AnnotatedValue:
    """What lay in several cuts goes straight from there, in one move instead of two."""
    several = deducer.made_plain.get(value.id)
    if several is not None and not is_addend(target):
        return _of_several_cuts(deducer, several, target)
    if refine(value.layout, target) is None and not is_addend(target):
        value = deducer.convert(value, uncut(_settled(value.layout), ranks=True))
        return deducer.convert(value, target)
    return _marked(deducer, value, target)


def _marked(deducer: Deducer, value: AnnotatedValue, target: Layout) -> AnnotatedValue:
    """The marker of a communication."""
    note_gathered(deducer, value, target, value.stage)
    marker = CommMarker(
        value.layout,
        target,
        Combine.SUM if is_addend(value.layout) else Combine.COPY,
        value.stage,
        value.stage,
        planned=is_marker(deducer.row.op) or by_cells(value.layout, target),
    )
    return deducer.emit(COMM, (value,), target, marker=marker, dtype=value.dtype)


def _settled(layout: Layout) -> Layout:
    dims = tuple(tuple(factor.copies() for factor in dim) for dim in layout.dims)
    return make_layout(dims, layout.partial - {Axis.TENSOR})
