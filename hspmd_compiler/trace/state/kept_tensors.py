"""Tensors that modules keep from one step for the next: whether a step that reads them is still the same.

A mask or a table of angles, made at the first call and read at all others, changes nothing: the first step
makes from constants what the next one reads. In place of what was kept, the next step is traced with a
stand-in, a tensor of one number that models hardly have.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ...ir.fx_convert import PLACEHOLDER
from ...ir.graph import LogicalGraph, Meta, Ref, Row, map_refs, row_inputs
from ..decompositions.random_rows import is_drawn_by_position

FULL = "aten.full.default"
LARGE = 2**62
"""What a graph can hold of the types whose largest number is above it."""


def stand_in_of(tensor: torch.Tensor) -> torch.Tensor:
    """One of its shape, all of whose elements are one in memory: a graph takes such as `full`."""
    return torch.full((), _number(tensor.dtype), dtype=tensor.dtype).expand(tensor.shape)


def _number(kind: torch.dtype) -> float | int:
    if kind.is_floating_point or kind.is_complex:
        return torch.nan
    return 1 if kind is torch.bool else min(torch.iinfo(kind).max - 1, LARGE)


def does_the_same(first: LogicalGraph, following: LogicalGraph, kept: Iterable[torch.Tensor]) -> bool:
    """Whether a step is the first one, but that it reads stand-ins for these where that makes constants."""
    pairs = _outputs(first, following)
    if pairs is None:
        return False
    metas = {(tuple(one.shape), one.dtype) for one in kept}
    constants, seen = _constants(first), set(pairs)
    while pairs:
        one, other = pairs.pop()
        row, again = first.rows[one], following.rows[other]
        if (row.shape, row.dtype, row.outs) != (again.shape, again.dtype, again.outs):
            return False
        if one in constants and _is_stand_in(again, metas):
            continue
        if _call(row) != _call(again):
            return False
        read = zip(row_inputs(row), row_inputs(again), strict=True)
        new = [pair for pair in dict.fromkeys(read) if pair not in seen]
        seen.update(new)
        pairs += new
    return True


def _outputs(first: LogicalGraph, following: LogicalGraph) -> list[tuple[int, int]] | None:
    """Rows of both that must be the same: the loss, gradients and new buffers."""
    one, other = _results(first), _results(following)
    if one.keys() != other.keys():
        return None
    return [(one[name], other[name]) for name in one]


def _results(graph: LogicalGraph) -> dict[tuple[str, str], int]:
    grads = {("gradient", name): info.grad for name, info in graph.params.items()}
    buffers = {("buffer", name): row for name, row in graph.mutated.items()}
    found = {("loss", ""): graph.loss, **buffers, **grads}
    return {name: row for name, row in found.items() if row is not None}


def _constants(graph: LogicalGraph) -> set[int]:
    """Rows that depend on no parameter, buffer, input or random number."""
    found: set[int] = set()
    for row in graph.rows:
        free = row.op != PLACEHOLDER and not is_drawn_by_position(row)
        if free and found.issuperset(row_inputs(row)):
            found.add(row.id)
    return found


def _is_stand_in(row: Row, metas: set[Meta]) -> bool:
    if row.op != FULL or row.shape is None or row.dtype is None or (row.shape, row.dtype) not in metas:
        return False
    number = row.args[1]
    return number == _number(row.dtype) or number != number


def _call(row: Row) -> str:
    """What it does, whatever rows it reads."""
    origin = row.origin if row.op == PLACEHOLDER else None
    return repr((row.op, origin, map_refs(row.args, _nameless), map_refs(row.kwargs, _nameless)))


def _nameless(_: Ref) -> object:
    return Ref
