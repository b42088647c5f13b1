"""What a stage keeps of a micro-batch from its forward to its backward pass, in bytes.

Where gradients of weights run apart, what they read of the backward pass is kept until then, and counted too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch

from ..ir.annotated import AnnotatedRow, AnnotatedValue
from ..ir.graph import Phase
from ..layout.layout import Coordinate, Layout
from .compile_state import KeptShapes, Measured, Scheduled, grown
from .liveness import StageRows
from .pass_chain import Pass
from .segments import StagePlan
from .texts.cells import Line, joined, ranks_text

LayoutCounts = Counter[tuple[Layout, torch.dtype]]

_VIEWS = """
    alias.default clone.default detach.default expand.default permute.default select.int slice.Tensor
    split.Tensor split_with_sizes.default squeeze.default squeeze.dim squeeze.dims t.default transpose.int
    unsqueeze.default view.default _unsafe_view.default
"""
OURS = ("getitem", "hspmd.comm.default", "hspmd.comm_backward.default")
VIEWS = frozenset((*(f"aten.{name}" for name in _VIEWS.split()), *OURS))
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


def kept_for_weights(rows: StageRows, weights: Collection[int]) -> list[AnnotatedValue]:
    """The memory that a backward pass made or received, and its gradients of weights read later."""
    made = {row.out.id: row for row in (*rows.forward, *rows.backward)}
    arrived = {crossing.row.out.id for crossing in rows.arrivals if crossing.row.phase is Phase.BACKWARD}
    own = {row.out.id for row in rows.backward if row.out.id not in weights} | arrived
    read = (value for row in rows.backward if row.out.id in weights for value in row.reads)
    bases = (_base(value, made) for value in read if value.id not in weights)
    return list({base.id: base for base in bases if base.id in own}.values())


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


def saved_text(stages: Sequence[StagePlan], saved: Sequence[Sequence[Sequence[int]]]) -> str:
    """Per stage the bytes of each rank and micro-batch; ranks that keep the same stand together."""
    lines: list[Line] = []
    for plan, own in zip(stages, saved, strict=True):
        same: dict[tuple[int, ...], list[int]] = {}
        for rank, sizes in zip(plan.ranks, own, strict=True):
            same.setdefault(tuple(sizes), []).append(rank)
        for sizes, ranks in same.items():
            text = ", ".join(f"{size:,}" for size in sizes)
            lines.append(
                (f"pipeline {plan.pipeline}, stage {plan.stage}", f"ranks {ranks_text(ranks)}", text)
            )
    return joined(lines)


@dataclass(frozen=True, slots=True)
class SavedMemory(Pass[Scheduled, Measured]):
    """Bytes only: what is kept follows from the rows."""

    def run(self, state: Scheduled) -> Measured:
        values: dict[tuple[int, bool], list[AnnotatedValue]] = {}
        for plan in state.stages:
            if _key(plan) not in values:
                later = kept_for_weights(plan.rows, plan.weights)
                values[_key(plan)] = [*saved_values(plan.rows), *later]
        alike = {key: alike_values(held) for key, held in values.items()}
        saved = [_saved(plan, alike[_key(plan)]) for plan in state.stages]
        if state.strategy.sizes is None:
            return grown(Measured, state, saved=saved)
        kept = {_key(plan): _kept(plan, values[_key(plan)]) for plan in state.stages}
        return grown(Measured, state, saved=saved, kept=[kept[_key(plan)] for plan in state.stages])

    def text(self, before: Scheduled, after: Measured) -> str:
        return saved_text(after.stages, after.saved)

    def problems(self, before: Scheduled, after: Measured) -> Iterator[str]:
        for plan, saved in zip(after.stages, after.saved, strict=True):
            counts = [len(own) for own in saved]
            if counts != [len(plan.variants)] * len(plan.ranks) or any(
                size < 0 for own in saved for size in own
            ):
                yield f"pipeline {plan.pipeline}, stage {plan.stage}: {saved} bytes"


def _key(plan: StagePlan) -> tuple[int, bool]:
    return id(plan.rows), bool(plan.weights)


def _saved(plan: StagePlan, kept: LayoutCounts) -> list[list[int]]:
    """Of each rank and micro-batch; those of one variant need the same."""
    found = []
    for index in range(len(plan.ranks)):
        of_variant = [saved_bytes(kept, Coordinate(index, at)) for at in plan.first_of]
        found.append([of_variant[variant] for variant in plan.variants])
    return found


def _kept(plan: StagePlan, values: Sequence[AnnotatedValue]) -> list[KeptShapes]:
    """Of each rank; the same values in the same order whatever the sizes."""
    places = [Coordinate(index, plan.first_of[0]) for index in range(len(plan.ranks))]
    return [
        tuple([(value.dtype.itemsize, *value.layout.local_shape(at)) for value in values]) for at in places
    ]
