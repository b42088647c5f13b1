"""Plans of switches as simple as can be: element by element of the flat whole, the first holder sends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import prod

import numpy
from numpy.typing import NDArray

from hspmd_compiler.base.dtypes import BYTES
from hspmd_compiler.program.program import RankProgram, Shard
from hspmd_compiler.program.state.state_elements import (
    element_type,
    gradients_of,
    held,
    kinds_of,
    needed,
    pairs,
)
from hspmd_compiler.program.switch_plan import (
    COPY,
    VALUE,
    Move,
    StatePart,
    SwitchClass,
    SwitchPlan,
    SwitchScope,
)

Programs = Mapping[int, RankProgram]
"""By world rank."""


def simple_plan(
    source: str,
    target: str,
    before: Programs,
    after: Programs,
    scope: SwitchScope,
    moments: tuple[str, ...] = (),
) -> SwitchPlan:
    """A plan of a switch between two strategies of one model."""
    names = {shard.name: shard for own in before.values() for shard in own.shards}
    kinds = kinds_of(scope, moments)
    classes = [
        each
        for name, shard in sorted(names.items())
        for kind in kinds
        for each in _classes(name, kind, shard, before, after, scope)
    ]
    return SwitchPlan(source, target, scope, tuple(classes))


def _classes(
    name: str, kind: str, shard: Shard, before: Programs, after: Programs, scope: SwitchScope
) -> Iterator[SwitchClass]:
    had = _by_rank(before, name, kind, None)
    wants = _by_rank(after, name, kind, scope)
    size = prod(shard.whole_view)
    places = numpy.stack([*had.values(), *wants.values(), numpy.zeros(size, dtype=numpy.int64)])
    ends = [0, *(numpy.flatnonzero((places[:, 1:] != places[:, :-1]).any(0)) + 1).tolist(), size]
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[int, int]]] = {}
    for low, high in pairwise(ends):
        holders, needers = (tuple(rank for rank in of if of[rank][low]) for of in (had, wants))
        found.setdefault((holders, needers), []).append((low, high))
    for (holders, needers), runs in found.items():
        if needers:
            boxes = tuple((run,) for run in runs)
            count = sum(high - low for low, high in runs)
            moves = tuple(Move(holders[0], rank, 0, count) for rank in needers if rank not in holders)
            width = BYTES[_type(before, after, name, kind)]
            yield SwitchClass((kind,), width, holders, needers, (StatePart(name, (size,), boxes),), moves)


def _by_rank(
    programs: Programs, name: str, kind: str, scope: SwitchScope | None
) -> dict[int, NDArray[numpy.int64]]:
    found = {rank: _elements(own, name, kind, scope) for rank, own in sorted(programs.items())}
    return {rank: elements for rank, elements in found.items() if elements is not None}


def _type(before: Programs, after: Programs, name: str, kind: str) -> str:
    for own in (*after.values(), *before.values()):
        shard = next((shard for shard in own.shards if shard.name == name), None)
        if shard is not None and (kind in (VALUE, COPY) or name in gradients_of(own)):
            return element_type(shard, kind, gradients_of(own))
    raise KeyError(name)


def _elements(
    own: RankProgram, name: str, kind: str, scope: SwitchScope | None
) -> NDArray[numpy.int64] | None:
    """In which box of its own a rank holds each flat element of the whole, or needs it; 0: in none."""
    shard = next((shard for shard in own.shards if shard.name == name), None)
    if shard is None:
        return None
    grads = gradients_of(own)
    extent = held(shard, kind, grads) if scope is None else needed(shard, kind, scope, grads)
    found = numpy.zeros(shard.whole_view, dtype=numpy.int64)
    for number, (whole, _) in enumerate(pairs(shard, extent), 1):
        found[tuple(slice(low, high) for low, high in whole)] = number
    own_values = _elements(own, name, VALUE, scope) if kind == COPY else None
    if scope is SwitchScope.STATE and own_values is not None:
        found[own_values.reshape(shard.whole_view) > 0] = 0
    return found.reshape(-1)
