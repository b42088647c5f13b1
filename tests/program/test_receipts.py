"""A send is over when its receivers have answered: not later, and proved in lockstep not to be earlier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from hspmd_compiler.errors import VerifyError
from hspmd_compiler.program.program import Op, Program, RankProgram
from hspmd_compiler.program.receipts import with_receipts
from hspmd_compiler.verify.shape.fit import check_fit
from tests.cost_models.priced import DP, MIXED, PP, TP, compiled

STAGES = [{"stages": [{"devices": [at], "layers": 1} for at in range(4)], "micro_batches": [1] * 6}]
WIDE = [
    {
        "stages": [{"devices": [0], "layers": 2}, {"devices": [1, 2], "layers": 2}],
        "micro_batches": [1] * 4,
    }
]


def overs(own: RankProgram) -> list[tuple[int, int]]:
    return [(at, each.over) for at, each in enumerate(own.instructions) if each.over >= 0]


def with_over(program: Program, rank: int, at: int, over: int) -> Program:
    own = program.ranks[rank]
    changed = [
        replace(each, over=over) if place == at else each for place, each in enumerate(own.instructions)
    ]
    ranks = [replace(own, instructions=changed) if each is own else each for each in program.ranks]
    return replace(program, ranks=ranks)


def held_at_most(own: RankProgram) -> int:
    """Sends that a rank keeps at once."""
    sent = over = most = 0
    for each in own.instructions:
        sent += each.op is Op.SEND
        most = max(most, sent - over)
        over = max(over, each.over)
    return most


def test_what_is_held_does_not_grow_with_micro_batches() -> None:
    """1F1B: a stage has so many on their way as there are stages behind it, and answers to come."""
    eight, twelve = (compiled([{**STAGES[0], "micro_batches": [1] * count}]).program for count in (8, 12))
    for own, more in zip(eight.ranks, twelve.ranks, strict=True):
        assert held_at_most(more) == held_at_most(own) <= 2 * (4 - own.stage) + 1


def wrong(program: Program) -> Iterator[tuple[int, int, int]]:
    """Each RECV that tells one send more than it does, or than the one before does."""
    for own in program.ranks:
        over = sent = 0
        for at, each in enumerate(own.instructions):
            sent += each.op is Op.SEND
            over = max(over, each.over)
            if each.op is Op.RECV and over < sent:
                yield own.rank, at, over + 1


@pytest.mark.parametrize("pipelines", [PP, STAGES], ids=["two", "four"])
def test_one_send_more_is_too_early(pipelines: list[Any]) -> None:
    """So each is over at the first place that the proof allows."""
    program = compiled(pipelines).program
    check_fit(program)
    planted = list(wrong(program))
    assert len(planted) >= 5
    for rank, at, over in planted[:: max(1, len(planted) // 6)]:
        with pytest.raises(VerifyError, match=f"rank {rank} lets go of a message too early"):
            check_fit(with_over(program, rank, at, over))


@pytest.mark.parametrize("pipelines", [MIXED, WIDE], ids=["unequal", "wide"])
def test_a_send_to_several_is_over_when_all_have_answered(pipelines: list[Any]) -> None:
    program = compiled(pipelines).program
    assert any(overs(own) for own in program.ranks)
    check_fit(program)


@pytest.mark.parametrize("pipelines", [TP, DP], ids=["tensor", "data"])
def test_programs_without_stages_are_as_before(pipelines: list[Any]) -> None:
    ranks = compiled(pipelines).program.ranks
    assert all(one is other for one, other in zip(with_receipts(ranks), ranks, strict=True))
    assert not any(overs(own) for own in ranks)


def test_ranks_that_are_alike_share_their_instructions() -> None:
    first, second = compiled(WIDE).program.ranks[1:]
    assert overs(first) == overs(second)
    assert first.instructions is second.instructions
