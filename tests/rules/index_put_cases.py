"""How values are put and added by indices, for the brute-force test of rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from hspmd_compiler.ir.graph import Ref
from hspmd_compiler.rules.in_code.index_put_rules import PUTS
from hspmd_compiler.verify.rules.split_operands import Operand
from hspmd_compiler.verify.rules.split_operator import OperandSketch

from .rule_cases import FULL, INDEX, MATRIX, TARGET, VOCAB, B, Case, F, T, Take, below, normal

PUT = "aten.index_put.default"
ADDED = (True,)
TABLE = Operand((VOCAB, F), normal, sample=None, linear=False)
TOKEN = replace(TARGET, make=below(T))
COLUMN = replace(INDEX, shape=(B, 1), make=below(T))
INNER = replace(INDEX, shape=(3,), sample=None, make=below(T))
BASE = Operand((B, T, F), normal, linear=False)
PLACES = replace(INDEX, shape=(3,), sample=None)


def different(bound: int) -> Operand:
    """Places along a dim of so many, none of them twice."""

    def make(shape: tuple[int, ...]) -> Tensor:
        return torch.randperm(bound)[: shape[0]]

    return replace(PLACES, make=make)


def index_puts() -> Iterator[Case]:
    """Gradients of lookups, elements of samples replaced, and samples by their own index."""
    yield Case(PUT, lambda s, take: s.call(PUT, (take(TABLE), (take(INDEX),), take(FULL), *ADDED)))
    yield from lookups_differentiated()
    yield from _of_tables()
    yield from _of_samples()
    yield from _sample_by_sample()


def _of_tables() -> Iterator[Case]:
    """By two indices that are broadcast together, and by one that is the same for all samples."""
    grid = replace(TABLE, shape=(VOCAB, T, F))
    row, column = replace(INDEX, shape=(B, 1)), replace(INDEX, shape=(T,), sample=None, make=below(T))
    yield Case(PUT, lambda s, take: s.call(PUT, (take(grid), (take(row), take(column)), take(FULL), *ADDED)))
    fixed = replace(FULL, shape=(3, F), sample=None)
    yield Case(PUT, lambda s, take: s.call(PUT, (take(TABLE), (take(PLACES),), take(fixed), *ADDED)))
    once = different(VOCAB)
    yield Case(PUT, lambda s, take: s.call(PUT, (take(TABLE), (take(once),), take(fixed))), coupled=True)
    one = replace(FULL, shape=(F,), sample=None)
    yield Case(PUT, lambda s, take: s.call(PUT, (take(TABLE), (take(PLACES),), take(one), *ADDED)))


def _of_samples() -> Iterator[Case]:
    """The same places in every sample, which are a dim in the middle, the last one, or two apart."""
    values: list[tuple[tuple[int, ...], int | None]] = [
        ((B, 3, F), 0),
        ((1, 3, F), None),
        ((F,), None),
        ((), None),
    ]
    for shape, sample in values:
        given = replace(FULL, shape=shape, sample=sample)
        for rest, places in ((ADDED, replace(PLACES, make=below(T))), ((), different(T))):
            yield Case(
                PUT,
                lambda s, take, g=given, r=rest, p=places: s.call(
                    PUT, (take(BASE), (None, take(p)), take(g), *r)
                ),  # type: ignore[misc]
            )
    last = replace(FULL, shape=(B, T, 3))
    yield Case(PUT, lambda s, take: s.call(PUT, (take(BASE), (None, None, take(different(F))), take(last))))
    apart = replace(FULL, shape=(3, T), sample=None)
    indices = replace(PLACES, make=below(B)), replace(PLACES, make=below(F))
    yield Case(
        PUT,
        lambda s, take: s.call(
            PUT, (take(BASE), (take(indices[0]), None, take(indices[1])), take(apart), *ADDED)
        ),
        coupled=True,
    )


def _sample_by_sample() -> Iterator[Case]:
    """The gradient of x[arange(B), index], and of an index per sample and place."""
    own = replace(INDEX, shape=(B,), make=below(T))
    values = replace(FULL, shape=(B, F))
    for rest in (ADDED, ()):
        yield Case(
            PUT,
            lambda s, take, r=rest: s.call(
                PUT, (take(BASE), (s.call("aten.arange.default", (B,)), take(own)), take(values), *r)
            ),  # type: ignore[misc]
        )
    yield Case(PUT, lambda s, take: _rows_and_places(s, take))


def _rows_and_places(s: OperandSketch, take: Take) -> None:
    samples = s.call("aten.unsqueeze.default", (s.call("aten.arange.default", (B,)), 1))
    places = take(replace(INDEX, shape=(B, 3), make=below(T)))
    s.call(PUT, (take(BASE), (samples, places), take(replace(FULL, shape=(B, 3, F))), *ADDED))


def lookups_differentiated() -> Iterator[Case]:
    """As a trace calls them: rows of a table, inner dims, and a place per sample, into zeros."""
    for op in PUTS:
        yield Case(op, lambda s, take, op=op: _into_table(s, take, op))  # type: ignore[misc]
        yield Case(op, lambda s, take, op=op: _two_dims_of_a_table(s, take, op))  # type: ignore[misc]
        yield Case(op, lambda s, take, op=op: _within(s, take, op), coupled=True)  # type: ignore[misc]
        yield Case(op, lambda s, take, op=op: _per_sample(s, take, op))  # type: ignore[misc]
        yield Case(op, lambda s, take, op=op: _column_per_sample(s, take, op))  # type: ignore[misc]


def _zeros(s: OperandSketch, *shape: int) -> Ref:
    return s.call("aten.zeros.default", (shape,), {"dtype": torch.float64})


def _into_table(s: OperandSketch, take: Take, op: str) -> None:
    s.call(op, (_zeros(s, VOCAB, F), [take(INDEX)], take(FULL), True))


def _two_dims_of_a_table(s: OperandSketch, take: Take, op: str) -> None:
    indices = [take(INDEX), take(replace(INDEX, make=below(T)))]
    s.call(op, (_zeros(s, VOCAB, T, F), indices, take(FULL), True))


def _within(s: OperandSketch, take: Take, op: str) -> None:
    values = take(replace(FULL, shape=(B, 3, F)))
    s.call(op, (_zeros(s, B, T, F), [None, take(INNER)], values, True))


def _per_sample(s: OperandSketch, take: Take, op: str) -> None:
    counted = s.call("aten.arange.default", (B,))
    s.call(op, (_zeros(s, B, T, F), [counted, take(TOKEN)], take(MATRIX), True))


def _column_per_sample(s: OperandSketch, take: Take, op: str) -> None:
    counted = s.call("aten.unsqueeze.default", (s.call("aten.arange.default", (B,)), 1))
    values = take(replace(FULL, shape=(B, 1, F)))
    s.call(op, (_zeros(s, B, T, F), [counted, take(COLUMN)], values, True))
