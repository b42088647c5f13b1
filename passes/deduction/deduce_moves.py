"""Values leave the form a rule left them in: settled, reduced over ranks or the batch, sent to a stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.comm_plan import Combine
from ...errors import InternalError
from ...ir.annotated import COMM, STEP_REDUCE, AnnotatedValue, BatchSum, CommMarker
from ...layout.intervals import Sets
from ...layout.layout import Axis, Factor, Layout, make_layout, whole
from ...rules.rules import consistent, is_addend
from .gathered_wishes import note_gathered
from .routed_rows import at_home

if TYPE_CHECKING:
    from .deducer import Deducer


def settle(deducer: Deducer, value: AnnotatedValue) -> AnnotatedValue:
    """Without pending sums and addends; a sum over the batch becomes a step value."""
    if Axis.BATCH in value.layout.partial:
        value = deducer.step_value(value)
    return settle_ranks(deducer, value)


def settle_ranks(deducer: Deducer, value: AnnotatedValue) -> AnnotatedValue:
    """Without sums and addends that are pending over ranks."""
    if not is_addend(value.layout):
        return value
    return deducer.convert(value, _settled_layout(deducer, value.layout))


def _settled_layout(deducer: Deducer, layout: Layout) -> Layout:
    target = consistent(layout)
    tokens = _token_sets(deducer, layout) if Axis.TENSOR in layout.partial else None
    if tokens is None:
        return target
    return target.with_dims(
        (Factor(target.shape[1], Axis.SEQUENCE, tokens),) if index == 1 else dim
        for index, dim in enumerate(target.dims)
    )


def _token_sets(deducer: Deducer, layout: Layout) -> Sets | None:
    """How sequence parallelism cuts a [batch, tokens, features] value, None where it does not."""
    shape = layout.shape
    if not deducer.sequence_parallel or len(shape) != 3 or shape[0] != deducer.batch:
        return None
    return deducer.placement.tokens(deducer.stage, shape[1])


def all_reduce(deducer: Deducer, value: AnnotatedValue, combine: Combine) -> AnnotatedValue:
    """Reduce pieces that are whole on every rank of the stage."""
    stage = deducer.stage
    if len(deducer.stage_devices) == 1:
        return value
    marker = CommMarker(value.layout, value.layout, combine, stage, stage)
    return deducer.emit(COMM, (value,), value.layout, marker=marker, dtype=value.dtype)


def over_batch(deducer: Deducer, value: AnnotatedValue) -> AnnotatedValue:
    """A sum over the batch, reduced over all pipelines in the middle of a pass; whole on every rank.

    Only where each pipeline runs one micro-batch: `artifact.batch_sums` checks it for all of them.
    """
    if Axis.BATCH not in value.layout.partial:
        return settle_ranks(deducer, value)
    shape, stage = value.layout.shape, deducer.stage
    ranks = {Axis.TENSOR} if len(deducer.stage_devices) > 1 else set()
    pending = whole(shape, frozenset({Axis.BATCH, *ranks}))
    share = deducer.convert(value, pending)
    name = BatchSum(deducer.row.id, deducer.batch_sums[deducer.row.id])
    deducer.batch_sums[deducer.row.id] += 1
    marker = CommMarker(pending, whole(shape), Combine.SUM, stage, stage, name)
    return deducer.emit(COMM, (share,), whole(shape), marker=marker, dtype=value.dtype)


def sent(deducer: Deducer, row: int, home: int, stage: int) -> AnnotatedValue:
    """What a stage is sent of a row's value from the stage that computes it."""
    value = deducer.values.get((row, home))
    if value is None or isinstance(value, tuple):
        op = deducer.graph.rows[row].op
        raise InternalError(f"stage {stage} needs {op} before stage {home} has it", at=deducer.row.where)
    return transfer(deducer, value, stage)


def transfer(deducer: Deducer, value: AnnotatedValue, stage: int) -> AnnotatedValue:
    """The value in another stage, settled first; tokens stay cut, everything else is whole there.

    Where that stage has the same devices, it lies so before: the value stays where it is.
    """
    found = deducer.transferred.get((value.id, stage))
    if found is None:
        source = deducer.within(deducer.row, value.stage, lambda: _to_send(deducer, value))
        target = _across(deducer, source.layout, source.stage, stage)
        if stage in deducer.pipeline.lane_of(source.stage):
            wanted, at = target, source
            source = deducer.within(deducer.row, at.stage, lambda: deducer.convert(at, wanted))
        note_gathered(deducer, source, target, stage)
        marker = CommMarker(source.layout, target, Combine.COPY, source.stage, stage)
        found = deducer.within(
            deducer.row,
            stage,
            lambda: deducer.emit(COMM, (source,), target, marker=marker, dtype=source.dtype),
        )
        deducer.transferred[value.id, stage] = found
    return found


def _to_send(deducer: Deducer, value: AnnotatedValue) -> AnnotatedValue:
    """The value, settled over ranks; a step value as one that each micro-batch has."""
    row = deducer.made.get(value.id)
    if row is not None and row.op == STEP_REDUCE:
        before, deducer.phase = deducer.phase, row.phase
        value = deducer.emit("aten.alias.default", (value,), value.layout, dtype=value.dtype)
        deducer.phase = before
    return settle_ranks(deducer, deducer.plain(at_home(deducer, value)))


def _across(deducer: Deducer, layout: Layout, home: int, stage: int) -> Layout:
    """Samples that ranks share stay so where the other stage has as many ranks."""
    dims = []
    alike = deducer.pipeline.stages[stage].tp == deducer.pipeline.stages[home].tp
    for dim in layout.dims:
        factors = []
        for factor in dim:
            if factor.by_rank is not None and not alike:
                factor = factor.without(ranks=True)
            if factor.axis is Axis.SEQUENCE:
                sets = deducer.placement.tokens(stage, factor.size)
                factor = Factor(factor.size) if sets is None else Factor(factor.size, Axis.SEQUENCE, sets)
            elif factor.axis is Axis.TENSOR:
                factor = Factor(factor.size)
            factors.append(factor)
        dims.append(tuple(factors))
    return make_layout(tuple(dims), layout.partial)
