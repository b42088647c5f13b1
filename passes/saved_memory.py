"""What a stage keeps of a micro-batch from its forward to its backward pass, in bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import prod

import torch

from ..ir.annotated import AnnotatedRow, AnnotatedValue
from ..ir.graph import Phase
from ..layout.layout import Coordinate, Layout
from .liveness import StageRows

LayoutCounts = Counter[tuple[Layout, torch.dtype]]

VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "alias.default",
        "clone.default",
        "detach.default",
        "expand.default",
        "permute.default",
        "select.int",
        "slice.Tensor",
        "split.Tensor",
        "split_with_sizes.default",
        "squeeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "t.default",
        "transpose.int",
        "unsqueeze.default",
        "view.default",
        "_unsafe_view.default",
    )
) | {"getitem", "hspmd.comm.default", "hspmd.comm_backward.default"}
"""Operators whose result lies in the memory of their first operand; a getitem's, if that is a view."""
RESHAPE = "aten.reshape.default"
UNORDERED = frozenset({"aten.expand.default", "aten.permute.default", "aten.t.default", "aten.transpose.int"})
"""Views that a reshape behind them can't show: it counts as a copy."""


def saved_values(rows: StageRows) -> list[AnnotatedValue]:
    """The memory that backward reads of what forward made or received: no parameters, no inputs, no views."""
    made = {row.out.id: row for row in rows.forward}
    arrived = {crossing.row.out.id: crossing.row.out for crossing in rows.arrivals}
    found: dict[int, AnnotatedValue] = {}
    for value in _read_by_backward(rows):
        base = _base(value, made)
        if base.id in made or base.id in arrived:
            found[base.id] = base
    return list(found.values())


def _read_by_backward(rows: StageRows) -> Iterator[AnnotatedValue]:
    own = {row.out.id for row in rows.backward}
    own |= {crossing.row.out.id for crossing in rows.arrivals if crossing.row.phase is Phase.BACKWARD}
    return (value for row in rows.backward for value in row.reads if value.id not in own)


def _base(value: AnnotatedValue, made: dict[int, AnnotatedRow]) -> AnnotatedValue:
    """The value whose memory is kept where this one is."""
    while value.id in made and _is_view(made[value.id], made):
        value = made[value.id].reads[0]
    return value


def _is_view(row: AnnotatedRow, made: dict[int, AnnotatedRow]) -> bool:
    if row.op == RESHAPE:
        return not _is_unordered(row.reads[0], made)
    if row.op == "getitem":
        return row.reads[0].id in made and made[row.reads[0].id].op in VIEWS
    return row.op in VIEWS


def _is_unordered(value: AnnotatedValue, made: dict[int, AnnotatedRow]) -> bool:
    """Whether views on the way to the memory of a value have changed the order of its elements."""
    while value.id in made and made[value.id].op in VIEWS:
        if made[value.id].op in UNORDERED:
            return True
        value = made[value.id].reads[0]
    return False


def alike_values(values: Iterable[AnnotatedValue]) -> LayoutCounts:
    """How many of the values have one layout and type."""
    return Counter((value.layout, value.dtype) for value in values)


def saved_bytes(alike: LayoutCounts, at: Coordinate) -> int:
    """Bytes of values on one rank for one micro-batch."""
    return sum(
        count * prod(layout.local_shape(at)) * dtype.itemsize for (layout, dtype), count in alike.items()
    )
