"""Values of the whole batch: sums over all micro-batches of all pipelines, and values per sample, gathered.

A share is made for each micro-batch, shares are added up, and every micro-batch gets the result. What inputs
alone decide is known before the first pass (a count of targets). What activations decide is known when every
micro-batch has come to it, so that passes are cut in two there (`batch_levels.py`).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch

from ...ir.annotated import COMM, STEP_REDUCE, AnnotatedValue, PerCoordinate
from ...ir.element_types import NARROW
from ...layout.intervals import within
from ...layout.layout import Axis, Layout, make_layout, whole
from ...layout.refine import refine
from ...rules.rules import at_first, batch_coupled, is_addend, local_shape, uncut
from .deduce_moves import settle_ranks, transfer

if TYPE_CHECKING:
    from .deducer import Deducer

ALIAS = "aten.alias.default"
COPY = "aten._to_copy.default"
KNOWN_BY_ITSELF = -1
"""The number of a sum that is a row's value, or one in another layout; those inside a rule count up."""


def step_value(deducer: Deducer, value: AnnotatedValue) -> AnnotatedValue:
    """A sum over the batch, reduced over all micro-batches and pipelines once a step."""
    found = deducer.steps.get(value.id)
    if found is None:
        found = _of_inputs(deducer, value) if value.pure else _of_activations(deducer, value)
        deducer.steps[value.id] = found
    return found


def _of_inputs(deducer: Deducer, value: AnnotatedValue) -> AnnotatedValue:
    settled, share = _share_of_step(deducer, value)
    name = _name_inside(deducer, deducer.row.id if value.logical is None else value.logical)
    result = deducer.emit(STEP_REDUCE, (share, *name), settled, dtype=share.dtype)
    return _cast(deducer, result, value.dtype)


def _of_activations(deducer: Deducer, value: AnnotatedValue) -> AnnotatedValue:
    """In the stage, and the pass, that makes the value; another stage is sent the result."""
    row = deducer.made.get(value.id)
    if row is not None and row.marker is not None and row.marker.source_stage != value.stage:
        source = row.reads[0]
        result = deducer.within(deducer.row, source.stage, lambda: step_value(deducer, source))
        return transfer(deducer, result, value.stage)
    before = deducer.phase
    deducer.phase = before if row is None else row.phase
    settled, share = _share_of_step(deducer, value)
    share = deducer.emit(ALIAS, (share,), share.layout, dtype=share.dtype)  # read by nothing else
    result = deducer.emit(STEP_REDUCE, (share, *_name(deducer, value)), settled, dtype=share.dtype)
    result = _cast(deducer, result, value.dtype)
    deducer.phase = before
    moved = prod(value.layout.shape) * share.dtype.itemsize
    deducer.result.batch_values[deducer.row.id] = moved + deducer.result.batch_values.get(deducer.row.id, 0)
    return result


def _share_of_step(deducer: Deducer, value: AnnotatedValue) -> tuple[Layout, AnnotatedValue]:
    """The layout of a step value, and this rank's addend of it: that of the first rank, where all have it.

    Narrow types are summed over micro-batches and ranks in float32, as gradients are.
    """
    value = _cast(deducer, value, torch.float32) if value.dtype in NARROW else value
    if is_addend(value.layout) or value.layout.cut(ranks=True) is not None:
        shape = value.layout.shape
        return whole(shape), deducer.convert(value, whole(shape, frozenset({Axis.BATCH, Axis.TENSOR})))
    settled = make_layout(value.layout.dims, value.layout.partial - {Axis.BATCH})
    if len(deducer.stage_devices) == 1:
        return settled, value
    pending = make_layout(settled.dims, value.layout.partial | {Axis.TENSOR})
    args = (value, at_first(Axis.TENSOR))
    return settled, deducer.emit("hspmd.zero_unless", args, pending, dtype=value.dtype)


def _name(deducer: Deducer, value: AnnotatedValue) -> tuple[int, int]:
    """What the pipelines know a sum by: the row whose value it is, in whichever layout."""
    row = deducer.made.get(value.id)
    while row is not None:
        logical = deducer.renamed.get(row.out.id, row.out.logical)
        if logical is not None:
            return logical, KNOWN_BY_ITSELF
        row = deducer.made.get(row.reads[0].id) if row.op in SAME_VALUE else None
    return _name_inside(deducer, deducer.row.id)


SAME_VALUE = frozenset({ALIAS, COMM, "hspmd.take", "hspmd.factor_take", "hspmd.place", "hspmd.zero_unless"})
"""Rows that give their operand in another layout."""


def _name_inside(deducer: Deducer, row: int) -> tuple[int, int]:
    """A row, and how many sums of this stage are known by the same row before."""
    key = (deducer.stage, row)
    before = deducer.counts.get(key, 0)
    deducer.counts[key] = before + 1
    return row, before


def gather_batch(deducer: Deducer, value: AnnotatedValue) -> AnnotatedValue:
    """A value per sample, whole: each micro-batch adds its rows to zeros.

    A layer of which each device would hold the samples of all others, and wait for them, is refused.
    """
    if not value.pure and deducer.row.layer is not None:
        raise batch_coupled(deducer.row, value.layout, "a layer needs a value of all samples")
    value = _whole_on_ranks(deducer, value)
    found = deducer.gathered.get(value.id)
    if found is None:
        truth = value.dtype is torch.bool
        counted = _cast(deducer, value, torch.int32) if truth else value
        found = step_value(deducer, _placed(deducer, counted))
        found = _cast(deducer, found, torch.bool) if truth else found
        deducer.gathered[value.id] = found
    return found


def among_zeros(deducer: Deducer, value: AnnotatedValue) -> AnnotatedValue:
    """A value per sample as a sum over the batch, each micro-batch adding its own rows."""
    return _placed(deducer, _whole_on_ranks(deducer, value))


def _whole_on_ranks(deducer: Deducer, value: AnnotatedValue) -> AnnotatedValue:
    value = settle_ranks(deducer, value)
    return deducer.convert(value, uncut(value.layout, ranks=True))


def _cast(deducer: Deducer, value: AnnotatedValue, dtype: torch.dtype) -> AnnotatedValue:
    if value.dtype is dtype:
        return value
    return deducer.emit(COPY, (value,), value.layout, kwargs={"dtype": dtype}, dtype=dtype)


def _placed(deducer: Deducer, value: AnnotatedValue) -> AnnotatedValue:
    """The rows of a micro-batch at their place in the whole value, zeros elsewhere."""
    target = make_layout(uncut(value.layout, ranks=False).dims, value.layout.partial | {Axis.BATCH})
    refined = refine(value.layout, target)
    assert refined is not None, "a whole value can be read in any factors"
    index = next(i for i, (source, _) in enumerate(refined.pairs) if source.axis is Axis.BATCH)
    source = refined.pairs[index][0]
    everything = ((0, source.size),)
    view = PerCoordinate(lambda at: refined.view(at, source=True))
    places = PerCoordinate(lambda at: within(everything, source.held(at)), by_position=True)
    args = (value, view, index, source.size, places, local_shape(target))
    return deducer.emit("hspmd.place", args, target, dtype=value.dtype)
