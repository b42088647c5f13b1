"""A random global batch that is legal for a model: indexes inside their tables, targets ignored unevenly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.ir import InputInfo, LogicalGraph, Ref, Row, row_inputs

MOVES = frozenset(
    f"aten.{name}"
    for name in (
        "_unsafe_view.default",
        "alias.default",
        "clone.default",
        "constant_pad_nd.default",
        "detach.default",
        "expand.default",
        "lift_fresh_copy.default",
        "permute.default",
        "select.int",
        "slice.Tensor",
        "squeeze.dim",
        "t.default",
        "transpose.int",
        "unsqueeze.default",
        "view.default",
    )
)
"""Operators whose result holds values of their operand, unchanged."""
TABLE = "aten.embedding.default"
TARGET = "aten.nll_loss_forward.default"
BACKWARD = frozenset({"aten.embedding_dense_backward.default", "aten.nll_loss_backward.default"})
"""Their index is that of the forward operator."""
IGNORED_SAMPLES = 0.25


@dataclass(frozen=True, slots=True)
class Choice:
    """One use of an integer as an index. limit: number of choices. ignored: the value that picks none."""

    limit: int
    ignored: int | None = None


def random_batch(
    graph: LogicalGraph, examples: Mapping[str, Tensor] | None, generator: torch.Generator
) -> dict[str, Tensor]:
    """Random floats, random indexes; other integers are rows of the examples, or ones without any."""
    return {name: _drawn(graph, info, examples, generator) for name, info in graph.inputs.items()}


def choices(graph: LogicalGraph, row: int) -> list[Choice] | None:
    """What the values of an input pick; None where some use is not a pick."""
    held = {row}
    found: list[Choice] = []
    for user in graph.rows:
        if held.isdisjoint(row_inputs(user)) or user.op in BACKWARD:
            continue
        if user.op in MOVES:
            held.add(user.id)
            continue
        picks = list(_picks(graph, user, held))
        if not picks:
            return None
        found += picks
    return found


def _picks(graph: LogicalGraph, user: Row, held: set[int]) -> Iterator[Choice]:
    index = user.args[1] if user.op in (TABLE, TARGET) else None
    source = user.args[0] if index is not None else None
    if not (isinstance(index, Ref) and index.id in held and isinstance(source, Ref)):
        return
    shape = graph.rows[source.id].shape or (1,)
    ignored = user.args[4] if user.op == TARGET else None
    yield Choice(shape[0 if user.op == TABLE else -1], ignored if isinstance(ignored, int) else None)


def _drawn(
    graph: LogicalGraph,
    info: InputInfo,
    examples: Mapping[str, Tensor] | None,
    generator: torch.Generator,
) -> Tensor:
    if info.dtype.is_floating_point:
        return torch.randn(info.shape, generator=generator, dtype=info.dtype)
    found = choices(graph, info.row) if info.dtype is not torch.bool else None
    if found:
        drawn = torch.randint(
            min(choice.limit for choice in found), info.shape, generator=generator, dtype=info.dtype
        )
        ignored = {choice.ignored for choice in found}
        value = ignored.pop()
        return drawn if ignored or value is None else ignore_some(drawn, value, generator)
    if examples is None or info.name not in examples:
        return torch.ones(info.shape, dtype=info.dtype)
    rows = examples[info.name]
    order = torch.randperm(graph.batch, generator=generator) % len(rows)
    return rows[order].to(info.dtype)


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
