"""What is kept of steps stays bounded, however many sizes come."""

from __future__ import annotations

import gc
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.base.comm_plan import Combine, CommKind, CommStep, Piece
from hspmd_compiler.program.exchange_plan import ExchangePlan, Shortcut, shortcut_of_equals
from hspmd_compiler.program.sized.recent import Recent
from hspmd_compiler.runtime import members
from hspmd_compiler.runtime.members import ProgramMembers


@given(st.lists(st.integers(0, 9)), st.integers(1, 5))
def test_the_last_keys_asked_for_are_kept(keys: list[int], most: int) -> None:
    recent: Recent[int, str] = Recent(most)
    model: OrderedDict[int, str] = OrderedDict()
    for number, key in enumerate(keys):
        wanted = model.pop(key, f"{key} made at {number}")
        model[key] = wanted
        while len(model) > most:
            model.popitem(last=False)
        assert recent.get(key, lambda key=key, number=number: f"{key} made at {number}") == wanted
        assert len(recent) == len(model)


def test_steps_that_are_in_use_no_more_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MOST_STEPS", 8)
    known = ProgramMembers((7001, 7002))  # a group that no other test has
    for size in range(1, 100):
        step = _gather((size, size))
        assert known.step(step) is known.step(step)
    held = [each for each in gc.get_objects() if type(each) is CommStep and each.group == (7001, 7002)]
    assert 0 < len(held) <= 8


@pytest.mark.parametrize(("sizes", "equal"), [((3, 3), True), ((3, 4), False), ((0, 0), False)])
def test_members_see_alike_whether_pieces_are_equal(sizes: tuple[int, int], equal: bool) -> None:
    for rank in range(2):
        gather = _gather(sizes, rank)
        assert shortcut_of_equals(gather) is Shortcut.ALL_GATHER
        assert ExchangePlan.of(gather).shortcut is (Shortcut.ALL_GATHER if equal else Shortcut.NONE)
        scatter = _scatter(sizes, rank)
        if all(sizes):
            assert shortcut_of_equals(scatter) is Shortcut.REDUCE_SCATTER
        assert ExchangePlan.of(scatter).shortcut is (Shortcut.REDUCE_SCATTER if equal else Shortcut.NONE)


def _gather(sizes: tuple[int, int], rank: int = 0) -> CommStep:
    """The part of a rank in gathering pieces of so many elements."""
    whole = (sum(sizes),)
    ends = (0, sizes[0], sum(sizes))
    sends = tuple(Piece(peer, (((0, sizes[rank]),),)) for peer in range(2))
    recvs = tuple(Piece(peer, (((ends[peer], ends[peer + 1]),),)) for peer in range(2))
    return CommStep(0, CommKind.ALL_GATHER, (0, 1), Combine.COPY, (sizes[rank],), whole, whole, sends, recvs)


def _scatter(sizes: tuple[int, int], rank: int) -> CommStep:
    """The part of a rank in summing pieces of so many elements, each for one member."""
    ends, own = (0, sizes[0], sum(sizes)), (sizes[rank],)
    sends = tuple(Piece(peer, (((ends[peer], ends[peer + 1]),),)) for peer in range(2))
    recvs = tuple(Piece(peer, (((0, sizes[rank]),),)) for peer in range(2))
    return CommStep(0, CommKind.REDUCE_SCATTER, (0, 1), Combine.SUM, (sum(sizes),), own, own, sends, recvs)
