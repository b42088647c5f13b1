"""How `index_put` is called, as the gradient of advanced indexing, for the brute-force test of rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from hspmd_compiler.graph.index_put_rules import PUTS
from hspmd_compiler.graph.ir import Ref

from .rule_cases import FULL, INDEX, MATRIX, TARGET, VOCAB, B, Case, F, T, Take, below
from .sharded_rows import Sketch

TOKEN = replace(TARGET, make=below(T))
COLUMN = replace(INDEX, shape=(B, 1), make=below(T))
INNER = replace(INDEX, shape=(3,), sample=None, make=below(T))


def index_puts() -> Iterator[Case]:
    """Rows of a table, inner dims, and a place per sample."""
    for op in PUTS:
        yield Case(op, lambda s, take, op=op: _into_table(s, take, op))  # type: ignore[misc]
        yield Case(op, lambda s, take, op=op: _two_dims_of_a_table(s, take, op))  # type: ignore[misc]
        yield Case(op, lambda s, take, op=op: _within(s, take, op), coupled=True)  # type: ignore[misc]
        yield Case(op, lambda s, take, op=op: _per_sample(s, take, op))  # type: ignore[misc]
        yield Case(op, lambda s, take, op=op: _column_per_sample(s, take, op))  # type: ignore[misc]


def _zeros(s: Sketch, *shape: int) -> Ref:
    return s.call("aten.zeros.default", (shape,), {"dtype": torch.float64})


def _into_table(s: Sketch, take: Take, op: str) -> None:
    s.call(op, (_zeros(s, VOCAB, F), [take(INDEX)], take(FULL), True))


def _two_dims_of_a_table(s: Sketch, take: Take, op: str) -> None:
    indices = [take(INDEX), take(replace(INDEX, make=below(T)))]
    s.call(op, (_zeros(s, VOCAB, T, F), indices, take(FULL), True))


def _within(s: Sketch, take: Take, op: str) -> None:
    values = take(replace(FULL, shape=(B, 3, F)))
    s.call(op, (_zeros(s, B, T, F), [None, take(INNER)], values, True))


def _per_sample(s: Sketch, take: Take, op: str) -> None:
    counted = s.call("aten.arange.default", (B,))
    s.call(op, (_zeros(s, B, T, F), [counted, take(TOKEN)], take(MATRIX), True))


def _column_per_sample(s: Sketch, take: Take, op: str) -> None:
    counted = s.call("aten.unsqueeze.default", (s.call("aten.arange.default", (B,)), 1))
    values = take(replace(FULL, shape=(B, 1, F)))
    s.call(op, (_zeros(s, B, T, F), [counted, take(COLUMN)], values, True))
