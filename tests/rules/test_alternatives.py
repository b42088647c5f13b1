"""Every way that a rule's value names is executed as a planner's choice, and equals the operator whole."""

from __future__ import annotations

import random
import zlib

import pytest
import torch

from hspmd_compiler.errors import DeduceError
from hspmd_compiler.ir.graph import Ref, Row
from hspmd_compiler.rules.call_rule import Alternative
from hspmd_compiler.rules.op_rule import OP_RULES
from hspmd_compiler.verify.rules.rule_calls import drawn_calls
from hspmd_compiler.verify.rules.rule_check import check_rule, equals_whole, ways_of
from hspmd_compiler.verify.rules.split_operands import Operand, StageMesh, random_layout
from hspmd_compiler.verify.rules.split_operator import OperandSketch

from ..quick import quick_are
from .rule_cases import Case
from .test_rules_brute_force import BY_OP, MICRO_BATCHES, QUICK_OPS, describe

CASES, SEEDS = 6, 4
QUICK_CASES = 2
"""Of an operator's calls in the quick run."""
MOSTLY = 0.6
OPS = quick_are(sorted(OP_RULES), QUICK_OPS & OP_RULES.keys())


@pytest.mark.parametrize("op", OPS)
def test_every_way_equals_the_whole_operator(op: str) -> None:
    check_ways(op, QUICK_CASES)


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(OP_RULES))
def test_every_way_of_more_calls(op: str) -> None:
    check_ways(op, CASES)


def check_ways(op: str, cases: int) -> None:
    """Of so many calls, of more where none of their ways could be tried."""
    draws = random.Random(zlib.crc32(op.encode()) + 1)
    tried = 0
    for number, case in enumerate(BY_OP[op][:CASES] * SEEDS):
        if number >= cases and tried:
            break
        tried += tried_ways(case, op, draws.randrange(2**32))
    assert tried, f"{op}: no way was tried"


def tried_ways(case: Case, op: str, seed: int) -> int:
    """Each way of one call, on operands in random layouts."""
    number = tried = 0
    while True:
        sketch, row = sketched(case, op, seed)
        found = ways_of(sketch, row)
        if number >= len(found):
            return tried
        tried += is_exact(sketch, row, found[number])
        number += 1


def sketched(case: Case, op: str, seed: int) -> tuple[OperandSketch, Row]:
    """The same call each time, for each way is deduced anew."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    batch = rng.choice(MICRO_BATCHES)
    sketch = OperandSketch(StageMesh(rng.choice((2, 3)), batch))

    def take(operand: Operand) -> Ref:
        return sketch.operand(operand, random_layout(rng, operand, sketch.mesh, bool(batch)))

    case.build(sketch, take)
    return sketch, next(row for row in reversed(sketch.rows) if row.op == op)


def is_exact(sketch: OperandSketch, row: Row, way: Alternative) -> bool:
    """Whether it could be tried: samples of several micro-batches don't meet in a pattern."""
    try:
        equals_whole(sketch, row, way)
    except DeduceError as error:
        if "micro-batches" in error.what and sketch.mesh.batch:
            return False
        raise AssertionError(f"{way.letter!r}: {error.text()}\n{describe(sketch)}") from error
    except Exception as error:
        raise AssertionError(f"{way.letter!r}: {error}\n{describe(sketch)}") from error
    return True


@pytest.mark.parametrize("op", OPS)
def test_calls_made_from_the_value_alone(op: str) -> None:
    """Where the schema says enough: the check that `hspmd rules OP --check` does."""
    found = check_rule(op, calls=2)
    assert found.problem is None


def test_most_rules_can_be_called_from_their_value() -> None:
    """The others need literals that no schema says, as the dims of a norm."""
    called = [op for op in OP_RULES if next(drawn_calls(op, 1, seed=0), None) is not None]
    assert len(called) > MOSTLY * len(OP_RULES)
