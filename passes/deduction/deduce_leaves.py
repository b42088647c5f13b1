"""Leaves of a pipeline's graph: inputs, parameters, buffers and keys, each in the layout of its stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ir.annotated import AnnotatedValue
from ...ir.graph import OriginKind, Ref, Row
from ...layout.layout import Axis, Dim, Factor, make_layout, whole
from ...layout.several_cuts import is_plain
from ...rules.in_code.lookup_rules import EMBEDDING

if TYPE_CHECKING:
    from .deducer import Deducer


def leaf(deducer: Deducer, row: Row, stage: int) -> AnnotatedValue:
    """The value of a placeholder in a stage, noted in the result under its name."""
    kind = row.origin.kind
    if kind is OriginKind.TANGENT:
        return deducer.emit("hspmd.full", ((), 1.0, row.dtype), whole(()), dtype=row.dtype)
    if kind is OriginKind.RANDOM:
        value = deducer.new(whole(row.shape or ()), row.dtype, stage, pure=True)
        deducer.result.keys[stage] = value
        return value
    return (_input if kind is OriginKind.INPUT else _held)(deducer, row, stage)


def _input(deducer: Deducer, row: Row, stage: int) -> AnnotatedValue:
    """An input of the batch, whose dim 0 is the sample."""
    dims: tuple[Dim, ...] = ((Factor(deducer.batch, Axis.BATCH, deducer.placement.batch),),)
    layout = make_layout(dims + tuple((Factor(size),) for size in (row.shape or ())[1:]))
    value = deducer.new(layout, row.dtype, stage, pure=True)
    deducer.result.inputs[row.origin.name, stage] = value
    return value


def _held(deducer: Deducer, row: Row, stage: int) -> AnnotatedValue:
    """A parameter as the placement says, or a buffer, which every rank has whole."""
    name, buffer = row.origin.name, row.origin.kind is OriginKind.BUFFER
    layout = whole(row.shape or ()) if buffer else deducer.placement.layouts(name, stage)
    value = deducer.new(layout, row.dtype, stage, pure=buffer, constant=buffer)
    value.static = True
    deducer.result.params[name, stage] = value
    if not is_plain(layout):
        deducer.used_as[value.id] = deducer.placement.used(name, stage)
    return value


def lookup_cut(deducer: Deducer, index_row: int, rows: int) -> Factor | None:
    """How the table of so many rows that the forward looked up with this index is cut along them."""
    for row in deducer.graph.rows:
        if row.op != EMBEDDING or row.args[1] != Ref(index_row):
            continue
        table = deducer.operand(row.args[0])
        if table.layout.shape[0] == rows and len(table.layout.dims[0]) == 1:
            factor = table.layout.dims[0][0]
            return factor if factor.axis is not None else None
    return None
