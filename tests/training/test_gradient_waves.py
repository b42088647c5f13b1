"""Gradients that are summed while backward goes on: equal to one device, and only where orders allow it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from hspmd_compiler.program.program import Op, Program
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import Recompute, RecomputeKind, Strategy
from hspmd_compiler.strategy.strategy import StageSpec as S

from .equal_to_eager import Case
from .training_cases import ALL, FIRST, SECOND, STRATEGIES, SUBJECTS

SMALL = 6000
"""Bytes that a few parameters of a layer have."""
CASES = {
    "dp2": Strategy((P((S((0,), ALL),), (3, 2)), P((S((1,), ALL),), (3, 2)))),
    "dp32": STRATEGIES["dp32"],
    "dp2-pp2": Strategy(
        (
            P((S((0,), FIRST), S((1,), SECOND)), (2, 2, 1)),
            P((S((2,), FIRST), S((3,), SECOND)), (2, 2, 1)),
        )
    ),
    "mixed": STRATEGIES["mixed"],
    "tp32": STRATEGIES["tp32"],
    "sp": STRATEGIES["sp"],
    "three": STRATEGIES["three"],
    "one recomputes": Strategy(
        (P((S((0,), ALL),), (5,)), P((S((1,), ALL),), (5,), (Recompute(ALL, RecomputeKind.FULL),)))
    ),
}


@cache
def case(subject: str) -> Case:
    made = SUBJECTS[subject]
    return Case.of(made.build, made.batch(0))


def starts(program: Program) -> dict[int, list[tuple[int, int]]]:
    """Per rank the waves that it starts, each with the backward passes that are still to come."""
    found: dict[int, list[tuple[int, int]]] = {}
    for own in program.ranks:
        ops = [each.op for each in own.instructions]
        found[own.rank] = [
            (each.wave, ops[at:].count(Op.BACKWARD))
            for at, each in enumerate(own.instructions)
            if each.op is Op.REDUCE_START
        ]
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("zero", [0, 1])
def test_equal_to_eager(name: str, zero: int) -> None:
    """Sums that start within the last backward pass, in any pipelines."""
    program = case("llama").check(replace(CASES[name], bucket_bytes=SMALL, zero=zero))
    begun = starts(program)
    assert all(begun.values())
    assert any(left for waves in begun.values() for _, left in waves)
    assert all(waves == sorted(waves) for waves in ([wave for wave, _ in own] for own in begun.values()))
