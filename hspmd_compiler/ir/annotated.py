"""The annotated graph of one pipeline: local rows with layouts, stages, and communication markers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..base.comm_plan import Combine, Counted
from ..layout.intervals import Sets
from ..layout.layout import Coordinate, Dim, Layout
from .graph import Phase, Row

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class PerCoordinate:
    """A literal that depends on where the rank and the micro-batch lie.

    by_position: it depends on which micro-batch it is, not only on the micro-batch's size.
    """

    at: Callable[[Coordinate], object]
    by_position: bool = False


@dataclass(slots=True, eq=False)
class AnnotatedValue:
    """A value with its layout in one stage.

    pure: computed from inputs and constants alone. constant: from constants alone. static: from parameters
    and constants alone. loose: ranks computed copies of an element in pieces of unlike sizes, so that
    their last bits may differ. producer: its row while that row is not yet placed (pure values are
    placed when first used). via: the logical layout operator that made it, and its operand, so that
    a conversion can be done before it.
    """

    id: int
    layout: Layout
    dtype: torch.dtype
    stage: int
    pure: bool = False
    constant: bool = False
    static: bool = False
    loose: bool = False
    logical: int | None = None
    producer: AnnotatedRow | None = None
    via: tuple[Row, AnnotatedValue] | None = None


@dataclass(frozen=True, slots=True)
class BatchSum:
    """Which sum over the batch it is, for all pipelines to take part: a logical row's first, second, ..."""

    row: int
    number: int


@dataclass(frozen=True, slots=True)
class CommMarker:
    """A conversion that needs communication: between layouts, or an all-reduce with `combine`.

    source_stage differs from the row's stage when the value crosses stages. batch_sum: it is reduced
    over the stages of all pipelines that make the row. planned: the cheapest of several ways is taken,
    as between two annotations. counted: rows go to the owners of their experts, or back.
    """

    source: Layout
    target: Layout
    combine: Combine
    source_stage: int
    target_stage: int
    batch_sum: BatchSum | None = None
    planned: bool = False
    counted: Counted = Counted.NO


@dataclass(slots=True, eq=False)
class AnnotatedRow:
    """One local operator; args hold AnnotatedValue, PerCoordinate, literals and tuples of these.

    reads: every value in the arguments, in order.
    """

    out: AnnotatedValue
    op: str
    args: tuple[object, ...]
    kwargs: dict[str, object]
    stage: int
    phase: Phase
    where: str = ""
    marker: CommMarker | None = None
    reads: tuple[AnnotatedValue, ...] = ()


@dataclass(frozen=True, slots=True)
class GradTerm:
    """An addend of a parameter's gradient, computed in `stage`."""

    param: str
    stage: int
    value: AnnotatedValue


@dataclass(frozen=True, slots=True)
class BufferUpdate:
    """The new value of a buffer, computed in `stage`."""

    buffer: str
    stage: int
    value: AnnotatedValue


@dataclass(frozen=True, slots=True)
class Routing:
    """Rows go to the owners of their experts. experts: the logical row that names these. home: how ranks of
    the stage hold rows before. owned: experts of each."""

    experts: int
    home: Dim
    owned: Sets


@dataclass(slots=True)
class PipelineGraph:
    """The deduced program of one pipeline, all stages, before it is cut and localised.

    params: (name, stage) -> value. keys: of random masks, by stage. loss: the value of the loss (a
    pending sum over BATCH when the batch is split). logical: values by row. on_demand: those of rows
    that each stage computes for itself, by (row, stage). computed_whole: bytes gathered for rows without a
    rule. batch_values: bytes of sums over the batch that activations decide, by the row that needs them.
    factored: products that make a parameter's gradient of operands that ranks gathered.
    gathered_wishes: why a row gathers what a marker asked for, by (marker, row). routings: of rows to
    experts, by their number.
    """

    pipeline: int
    rows: list[AnnotatedRow] = field(default_factory=list)
    params: dict[tuple[str, int], AnnotatedValue] = field(default_factory=dict)
    inputs: dict[tuple[str, int], AnnotatedValue] = field(default_factory=dict)
    keys: dict[int, AnnotatedValue] = field(default_factory=dict)
    grads: list[GradTerm] = field(default_factory=list)
    buffers: list[BufferUpdate] = field(default_factory=list)
    loss: AnnotatedValue | None = None
    logical: dict[int, AnnotatedValue] = field(default_factory=dict)
    on_demand: dict[tuple[int, int], AnnotatedValue] = field(default_factory=dict)
    computed_whole: dict[int, int] = field(default_factory=dict)
    batch_values: dict[int, int] = field(default_factory=dict)
    factored: set[int] = field(default_factory=set)
    gathered_wishes: dict[tuple[int, int], str] = field(default_factory=dict)
    routings: list[Routing] = field(default_factory=list)


COMM = "comm"
GATHER = "gather"
"""Parameters' elements from the rows that ranks store. kwargs: which; see `zero/gather_rows`."""
GATHER_START = "gather_start"
"""Gives its operand back: the gather that reads it may be under way from here on."""
STEP_REDUCE = "step_reduce"


def values_in(value: object) -> tuple[AnnotatedValue, ...]:
    """Every value inside nested arguments."""
    found: list[AnnotatedValue] = []
    _collect(value, found)
    return tuple(found)


def _collect(value: object, found: list[AnnotatedValue]) -> None:
    if isinstance(value, (tuple, list)):
        for item in value:
            if type(item) is AnnotatedValue:
                found.append(item)
            elif isinstance(item, (tuple, list)):
                _collect(item, found)
    elif isinstance(value, AnnotatedValue):
        found.append(value)
