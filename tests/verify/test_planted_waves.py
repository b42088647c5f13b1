"""Faults planted in sums that start while backward goes on: each is caught by shape, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from hspmd_compiler.errors import ArtifactError, VerifyError
from hspmd_compiler.program.check import check
from hspmd_compiler.program.program import Instruction, Op, Program, RankProgram
from hspmd_compiler.verify.shape.fit import check_fit

from ..training.test_gradient_waves import CASES, SMALL, case
from ..training.training_cases import program_for
from .planted import with_rank

Fault = Callable[[RankProgram], list[Instruction]]
"""A rank's instructions with a fault in them."""


@cache
def right(name: str) -> Program:
    return program_for(case("llama").graph, replace(CASES[name], bucket_bytes=SMALL))


def places(own: RankProgram, op: Op) -> list[int]:
    return [at for at, each in enumerate(own.instructions) if each.op is op]


def swapped(own: RankProgram, one: int, other: int) -> list[Instruction]:
    made = list(own.instructions)
    made[one], made[other] = made[other], made[one]
    return made


def early(own: RankProgram) -> list[Instruction]:
    """The first wave starts before the part of the last backward pass that makes it whole."""
    at = places(own, Op.REDUCE_START)[0]
    back = max(place for place in places(own, Op.BACKWARD) if place < at)
    made = [each for place, each in enumerate(own.instructions) if place != at]
    return [*made[:back], own.instructions[at], *made[back:]]


def waits_in_another_order(own: RankProgram) -> list[Instruction]:
    first, second = places(own, Op.REDUCE_WAIT)[:2]
    return swapped(own, first, second)


def starts_in_another_order(own: RankProgram) -> list[Instruction]:
    """Two that are whole: behind each other, at the end of the pass."""
    first, second = places(own, Op.REDUCE_START)[-2:]
    made = [each for place, each in enumerate(own.instructions) if place not in (first, second)]
    return [*made[: second - 1], own.instructions[second], own.instructions[first], *made[second - 1 :]]


def never_awaited(own: RankProgram) -> list[Instruction]:
    at = places(own, Op.REDUCE_WAIT)[-1]
    return [each for place, each in enumerate(own.instructions) if place != at]


def never_started(own: RankProgram) -> list[Instruction]:
    at = places(own, Op.REDUCE_START)[-1]
    return [each for place, each in enumerate(own.instructions) if place != at]


FAULTS: dict[Fault, tuple[str, str]] = {
    early: ("has started before the gradient was whole", "starts before instruction"),
    waits_in_another_order: ("waits for bucket", "are awaited"),
    starts_in_another_order: ("", "are awaited"),
    never_awaited: ("sums of gradients are started and never waited for", "are awaited"),
    never_started: ("", "never started"),
}
"""What the lockstep says, and what the check of an artifact says."""


@pytest.mark.parametrize("name", ["dp32", "mixed", "tp32"])
def test_what_is_right_passes(name: str) -> None:
    check(right(name))
    check_fit(right(name))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("name", ["dp32", "mixed"])
def test_a_planted_fault_is_caught(name: str, fault: Fault) -> None:
    base = right(name)
    in_step, in_file = FAULTS[fault]
    for own in (base.ranks[0], base.ranks[-1]):
        broken = with_rank(base, own, instructions=fault(own))
        with pytest.raises(VerifyError) as error:
            check_fit(broken)
        assert in_step in str(error.value) and f"rank {own.rank}" in str(error.value)
        with pytest.raises(ArtifactError) as refused:
            check(broken)
        assert in_file in str(refused.value)
