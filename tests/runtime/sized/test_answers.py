"""RECVs of a step of any size tell which sends are over: never one that the whole program's order doesn't."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from hspmd_compiler.errors import VerifyError
from hspmd_compiler.program.check import problems_of_program
from hspmd_compiler.program.program import Instruction, Op, RankProgram
from hspmd_compiler.program.sized.answers import with_answers
from hspmd_compiler.program.sized.instantiate import instantiate
from hspmd_compiler.program.sized.sized_run import SizedRun
from hspmd_compiler.program.sized.sizes import Count
from hspmd_compiler.program.sized.step_plan import StepPlan
from hspmd_compiler.verify.lockstep.tensors import TensorNames
from hspmd_compiler.verify.sized.proof import check_sizes
from tests.passes.sized_cases import SizedCase, planned
from tests.passes.test_sized import PIECES, Packed, packed


@cache
def case() -> SizedCase:
    torch.manual_seed(0)
    return SizedCase.of(Packed, lambda tokens: packed(5, tokens - 5, rows=2), PIECES, Count.TOKENS, 200)


def overs(instructions: list[Instruction]) -> list[int]:
    """At each RECV, how many sends have been over by then."""
    found, most = [], 0
    for each in instructions:
        if each.op is Op.RECV:
            most = max(most, each.over)
            found.append(most)
    return found


def of_step(own: RankProgram, plan: StepPlan) -> list[int]:
    return overs(SizedRun(case().program, own).plan_for(plan).program.instructions)


@pytest.mark.parametrize("pipelines", [([7], [5]), ([7, 12, 9, 30, 8], [5]), ([9, 9], [])])
def test_what_is_told_is_true(pipelines: tuple[list[int], list[int]]) -> None:
    plan, _ = planned(Count.TOKENS, *pipelines)
    told = 0
    for own, plain in zip(case().program.ranks, instantiate(case().program, plan).ranks, strict=True):
        found, wanted = of_step(own, plan), overs(plain.instructions)
        assert all(one <= true for one, true in zip(found, wanted, strict=True))
        told += sum(found)
        sends = sum(each.op is Op.SEND for each in plain.instructions)
        if own.pipeline == 0 and own.stage == 0:
            assert found[-1] == sends, "each message is answered by its gradient"
    assert told


def test_nothing_is_told_where_pieces_are_empty() -> None:
    """What doesn't come tells nothing; the next step tells again."""
    empty, _ = planned(Count.TOKENS, [12], [], cuts=((0, 12), (0, 12, 0)))
    full, _ = planned(Count.TOKENS, [12], [])
    for own in case().program.ranks:
        run = SizedRun(case().program, own)
        first, then, last = (overs(run.plan_for(plan).program.instructions) for plan in (full, empty, full))
        assert first == last
        if own.pipeline == 0:
            assert not any(then)


def test_an_answer_that_comes_too_early_is_refused() -> None:
    program = case().program
    assert with_answers(program.ranks) == program.ranks
    own = next(each for each in program.ranks if each.sized is not None and each.sized.answers)
    assert own.sized is not None
    (sent, _), *rest = own.sized.answers
    ranks = [
        replace(each, sized=replace(own.sized, answers=[(sent, sent), *rest])) if each is own else each
        for each in program.ranks
    ]
    wrong = replace(program, ranks=ranks)
    with pytest.raises(VerifyError, match="lets go of what it sent before it has been received"):
        check_sizes(wrong, [], lambda made: TensorNames(made, dict, dict))
    ranks[ranks.index(next(each for each in ranks if each.rank == own.rank))] = replace(
        own, sized=replace(own.sized, answers=[(sent, 99)])
    )
    assert any("answers" in text for _, text in problems_of_program(replace(program, ranks=ranks)))
