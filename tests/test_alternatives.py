"""Every way that a rule's value names is executed as a planner's choice, and equals the operator whole."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator

import pytest
import torch

from hspmd_compiler.annotations.layout import Axis, Layout
from hspmd_compiler.errors import DeduceError
from hspmd_compiler.graph.alternatives import alternatives, same_ranks
from hspmd_compiler.graph.call_rule import Alternative, call_of, tensors
from hspmd_compiler.graph.ir import Ref, Row
from hspmd_compiler.graph.op_rule import OP_RULES

from .rule_cases import Case
from .sharded_rows import Mesh, Operand, Sketch, check, deduced, random_layout
from .test_rules_brute_force import BY_OP, MICRO_BATCHES, describe

CASES, SEEDS = 6, 4
SHARES = (2, 1, 1)


WHOLE_SAMPLES = {"aten.native_group_norm.default"}
"""Operators whose code keeps samples on every rank."""


@pytest.mark.parametrize("op", sorted(OP_RULES.keys() - WHOLE_SAMPLES))
def test_every_way_equals_the_whole_operator(op: str) -> None:
    draws = random.Random(zlib.crc32(op.encode()) + 1)
    tried = 0
    for number, case in enumerate(BY_OP[op][:CASES] * SEEDS):
        if number >= CASES and tried:
            break
        tried += tried_ways(case, op, draws.randrange(2**32))
    assert tried, f"{op}: no way was tried"


def tried_ways(case: Case, op: str, seed: int) -> int:
    """Each way of one call, on operands in random layouts."""
    number = tried = 0
    while True:
        sketch, row = sketched(case, op, seed)
        found = ways(sketch, row)
        if number >= len(found):
            return tried
        tried += equals_whole(sketch, row, found[number])
        number += 1


def sketched(case: Case, op: str, seed: int) -> tuple[Sketch, Row]:
    """The same call each time, for each way is deduced anew."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    batch = rng.choice(MICRO_BATCHES)
    sketch = Sketch(Mesh(rng.choice((2, 3)), batch))

    def take(operand: Operand) -> Ref:
        return sketch.operand(operand, random_layout(rng, operand, sketch.mesh, bool(batch)))

    case.build(sketch, take)
    return sketch, next(row for row in reversed(sketch.rows) if row.op == op)


def ways(sketch: Sketch, row: Row) -> tuple[Alternative, ...]:
    """None beside a sum over the batch, or where samples can't meet."""
    try:
        _, values = deduced(sketch)
    except DeduceError:
        return ()
    given = [None if ref is None else values[ref.id].layout for ref in tensors(row)]
    layouts = [layout for layout in given if layout is not None]
    if any(Axis.BATCH in layout.partial for layout in layouts):
        return ()
    call = call_of(sketch.rows, row, (), {})
    return alternatives(call, layouts, SHARES[: sketch.mesh.ranks])


def equals_whole(sketch: Sketch, row: Row, way: Alternative) -> bool:
    """Whether it could be tried: samples of several micro-batches don't meet in a pattern."""
    sketch.choices = {row.id: way}
    try:
        check(sketch)
    except DeduceError as error:
        if "micro-batches" in error.what and sketch.mesh.batch:
            return False
        raise AssertionError(f"{way.letter!r}: {error.text()}\n{describe(sketch)}") from error
    except Exception as error:
        raise AssertionError(f"{way.letter!r}: {error}\n{describe(sketch)}") from error
    for place, layout in made_layouts(sketch, row):
        wanted = way.results[place]
        assert wanted is not None
        assert same_ranks(layout) == same_ranks(wanted), f"{way.letter!r}, result {place}"
    return True


def made_layouts(sketch: Sketch, row: Row) -> Iterator[tuple[int, Layout]]:
    """(number, layout) of the results that later rows take."""
    _, values = deduced(sketch)
    if row.outs is None:
        yield 0, values[row.id].layout
    for pick in sketch.rows:
        if pick.op == "getitem" and pick.args[0] == Ref(row.id):
            yield int(pick.args[1]), values[pick.id].layout  # type: ignore[call-overload]
