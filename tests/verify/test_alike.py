"""Ranks that are alike are walked once; what steers a rank makes it another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hspmd_compiler.errors import VerifyError
from hspmd_compiler.program.execute import RankPlan
from hspmd_compiler.program.program import Program, RankProgram
from hspmd_compiler.verify.lockstep.alike import Likeness
from hspmd_compiler.verify.shape import fit
from hspmd_compiler.verify.shape.fit import check_fit
from hspmd_compiler.verify.shape.shape_segments import ShapeBook
from hspmd_compiler.verify.shape.solo import Script

from .hand_made import pipeline, tensor_and_data_parallel

Change = Callable[[RankProgram], RankProgram]


def with_peer(own: RankProgram) -> RankProgram:
    step = own.transfers[0]
    sends = tuple(replace(piece, peer=piece.peer + 5) for piece in step.sends)
    return replace(own, transfers=[replace(step, id=9, group=(0, 7), sends=sends), *own.transfers[1:]])


def with_boxes(own: RankProgram) -> RankProgram:
    step = own.transfers[0]
    sends = tuple(replace(piece, boxes=(((0, 1), (0, 1)),)) for piece in step.sends)
    return replace(own, transfers=[replace(step, sends=sends), *own.transfers[1:]])


def with_tags(own: RankProgram) -> RankProgram:
    return replace(own, instructions=[replace(item, tag=item.tag + 40) for item in own.instructions])


def without_the_last(own: RankProgram) -> RankProgram:
    return replace(own, instructions=own.instructions[:-1])


def later_rows(own: RankProgram) -> RankProgram:
    return replace(own, rows=[(low + 3, high + 3) for low, high in own.rows])


def longer_rows(own: RankProgram) -> RankProgram:
    return replace(own, rows=[(low, high + 1) for low, high in own.rows])


def other_literals(own: RankProgram) -> RankProgram:
    return replace(own, literals=[*own.literals, 1.0])


@pytest.mark.parametrize(
    ("change", "alike"),
    [
        (lambda own: replace(own, rank=77, device=3, pipeline=2), True),
        (with_peer, True),
        (with_tags, True),
        (later_rows, True),
        (with_boxes, False),
        (without_the_last, False),
        (longer_rows, False),
        (other_literals, False),
        (lambda own: replace(own, grad_buckets=own.grad_buckets[:-1]), False),
        (lambda own: replace(own, shards=own.shards[:-1]), False),
    ],
)
def test_partners_alone_do_not_tell_ranks_apart(change: Change, alike: bool) -> None:
    own = pipeline().ranks[0]
    likeness = Likeness()
    assert own.transfers and own.grad_buckets
    assert (likeness.of(own) == likeness.of(change(own))) is alike


def test_a_fault_of_a_rank_that_follows_another_is_found() -> None:
    """Both ranks of the pair are alike, so that only the lockstep can see the second one's wrong group."""
    base = tensor_and_data_parallel()
    first, second = base.ranks[0], base.ranks[1]
    step = replace(first.comms[0], group=(0, 2))
    lone = replace(second, literals=first.literals, comms=[step])
    with pytest.raises(VerifyError, match="rank 1 joins a collective of other ranks"):
        check_fit(replace(base, ranks=[first, lone, base.ranks[2]]))


def test_a_rank_is_walked_for_all_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[int] = []

    def solo(program: Program, plan: RankPlan, book: ShapeBook) -> Script:
        walked.append(plan.program.rank)
        return real(program, plan, book)

    real = fit.solo
    monkeypatch.setattr(fit, "solo", solo)
    base, many = tensor_and_data_parallel(), 8
    first = base.ranks[0]
    step = replace(first.comms[0], group=tuple(range(many)))
    ranks = [
        replace(first, rank=rank, comms=[step], grad_buckets=[replace(first.grad_buckets[0], group=(rank,))])
        for rank in range(many)
    ]
    report = check_fit(replace(base, world_size=many, ranks=ranks))
    assert set(walked) == {0} and report.counts()["all_reduce"] == 2
    assert len(report.peak) == many and len(set(report.peak)) == 1
