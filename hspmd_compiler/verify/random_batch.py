"""A random global batch that is legal for a model: indexes inside their tables, targets ignored unevenly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..ir.graph import InputInfo, LogicalGraph, Ref, Row, row_inputs
from ..ir.own_names import PACKED, PACKED_BACKWARD
from ..rules.in_code.index_bounds import MOVES

PICKS = MOVES | frozenset(
    f"aten.{name}"
    for name in (
        "clamp.default",
        "clamp_min.default",
        "masked_fill.Scalar",
        "where.ScalarOther",
        "where.ScalarSelf",
        "where.self",
    )
)
"""Operators whose result holds values of their operand, or legal ones in their place."""
TABLE = "aten.embedding.default"
TARGET = "aten.nll_loss_forward.default"
BACKWARD = frozenset({"aten.embedding_dense_backward.default", "aten.nll_loss_backward.default"})
"""Their index is that of the forward operator."""
LOOKUPS = frozenset(
    f"aten.{name}"
    for name in (
        "gather.default",
        "index_add.default",
        "index_select.default",
        "scatter.value",
        "scatter_add.default",
    )
)
"""Operators whose arguments are a tensor, a dim of it, and places along that dim."""
COMPARISONS = frozenset(
    f"aten.{name}.{kind}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Scalar", "Tensor")
)
"""Operators that take any value of an index."""
PACKING = frozenset({PACKED, PACKED_BACKWARD})
ANY_INDEX = BACKWARD | COMPARISONS | PACKING
IGNORED_SAMPLES = 0.25
DOCUMENTS = -5
"""The argument of packed attention that tells documents."""
FEW = 8
"""An example with so few values is taken for one of kinds, or of truth values."""


@dataclass(frozen=True, slots=True)
class IndexUse:
    """One use of an integer as an index. limit: number of choices. ignored: the value that picks none."""

    limit: int
    ignored: int | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """An input's values, and how they came about."""

    values: Tensor
    how: str


def draw_batch(
    graph: LogicalGraph,
    examples: Mapping[str, Tensor] | None,
    generator: torch.Generator,
    ignoring: bool = True,
) -> dict[str, Drawn]:
    """Random fractions and indexes; other integers are rows of the examples, or ones without any.

    ignoring: some targets are left out by the loss.
    """
    return {
        name: _drawn(graph, info, (examples or {}).get(name), generator, ignoring)
        for name, info in graph.inputs.items()
    }


def choices(graph: LogicalGraph, row: int) -> list[IndexUse] | None:
    """What the values of an input pick; None where some use is not a pick."""
    held = {row}
    found: list[IndexUse] = []
    for user in graph.rows:
        if held.isdisjoint(row_inputs(user)) or user.op in ANY_INDEX:
            continue
        if user.op in PICKS:
            held.add(user.id)
            continue
        picks = list(_picks(graph, user, held))
        if not picks:
            return None
        found += picks
    return found


def _picks(graph: LogicalGraph, user: Row, held: set[int]) -> Iterator[IndexUse]:
    """The choices that a row makes by the held values."""
    if user.op in LOOKUPS:
        source, dim, index = user.args[:3]
        sizes = graph.rows[source.id].shape if isinstance(source, Ref) else None
        if sizes and isinstance(dim, int) and isinstance(index, Ref) and index.id in held:
            yield IndexUse(sizes[dim])
        return
    index = user.args[1] if user.op in (TABLE, TARGET) else None
    source = user.args[0] if index is not None else None
    if not (isinstance(index, Ref) and index.id in held and isinstance(source, Ref)):
        return
    shape = graph.rows[source.id].shape or (1,)
    ignored = user.args[4] if user.op == TARGET else None
    yield IndexUse(shape[0 if user.op == TABLE else -1], ignored if isinstance(ignored, int) else None)


def _drawn(
    graph: LogicalGraph,
    info: InputInfo,
    example: Tensor | None,
    generator: torch.Generator,
    ignoring: bool,
) -> Drawn:
    example = None if example is None or example.is_meta or not len(example) else example
    if info.dtype.is_floating_point or info.dtype.is_complex:
        return _fractions(info, example, generator)
    if _tells_documents(graph, info):
        limits = [choice.limit for choice in choices(graph, info.row) or ()]
        longest = min(limits, default=info.shape[1])
        return Drawn(_packings(info, generator, longest), "positions of packed documents")
    found = choices(graph, info.row) if info.dtype is not torch.bool else None
    if found:
        return _indexes(info, found, generator, ignoring)
    if example is None:
        return Drawn(torch.ones(info.shape, dtype=info.dtype), "ones")
    if info.dtype is not torch.bool and not example.any():
        return Drawn(torch.randint(2, info.shape, generator=generator, dtype=info.dtype), "zeros and ones")
    order = torch.randperm(graph.batch, generator=generator) % len(example)
    return Drawn(example[order].to(info.dtype), "samples of the example")


def _tells_documents(graph: LogicalGraph, info: InputInfo) -> bool:
    """Whether attention takes the input's values for positions of packed documents."""
    reads = (row for row in graph.rows if row.op in PACKING)
    return any(row.args[DOCUMENTS] == Ref(info.row) for row in reads)


def _packings(info: InputInfo, generator: torch.Generator, longest: int) -> Tensor:
    """Rows of documents, a few each: they begin anywhere. longest: a table of positions has no more."""
    count, length = info.shape
    begins = torch.rand((count, length), generator=generator) < FEW / 2 / max(length, FEW)
    begins[:, :1] = True
    places = torch.arange(length).expand(count, length)
    positions = places - torch.where(begins, places, 0).cummax(-1).values
    return (positions % max(longest, 1)).to(info.dtype)


def _indexes(info: InputInfo, found: list[IndexUse], generator: torch.Generator, ignoring: bool) -> Drawn:
    limit = min(choice.limit for choice in found)
    drawn = torch.randint(limit, info.shape, generator=generator, dtype=info.dtype)
    ignored = {choice.ignored for choice in found}
    value = ignored.pop()
    if ignored or value is None or not ignoring:
        return Drawn(drawn, f"indexes below {limit}")
    return Drawn(ignore_some(drawn, value, generator), f"indexes below {limit}, some ignored ({value})")


def _fractions(info: InputInfo, example: Tensor | None, generator: torch.Generator) -> Drawn:
    """Of a normal distribution; where the example has several values and none below zero, in its range."""
    normal = Drawn(torch.randn(info.shape, generator=generator, dtype=info.dtype), "of a normal distribution")
    if example is None or info.dtype.is_complex or not example.numel():
        return normal
    values: Tensor = example.unique()  # type: ignore[no-untyped-call]
    if len(values) == 1 or not values.isfinite().all() or values[0] < 0:
        return normal
    if len(values) <= FEW:
        chosen = torch.randint(len(values), info.shape, generator=generator)
        return Drawn(values[chosen].to(info.dtype), "values of the example")
    part = torch.rand(info.shape, generator=generator, dtype=torch.float64)
    low, high = values[0].double(), values[-1].double()
    return Drawn((low + part * (high - low)).to(info.dtype), "evenly from the example's range")


def ignore_some(target: Tensor, ignored: int, generator: torch.Generator) -> Tensor:
    """Another number of targets of each sample ignored, from its end; the first sample keeps all."""
    if target.dim() == 1:
        dropped = torch.rand(len(target), generator=generator) < IGNORED_SAMPLES
    else:
        rows = target.reshape(len(target), -1)
        counts = torch.randint(rows.shape[1], (len(rows), 1), generator=generator)
        positions = torch.arange(rows.shape[1])
        dropped = (positions >= rows.shape[1] - counts).reshape(target.shape)
    dropped[0] = False
    return target.masked_fill(dropped, ignored)
