"""What survivors go on from: all reports of three ranks, and many of more, against where each could get."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.errors import InternalError
from hspmd_compiler.runtime.elastic.decide import Decision, decide
from hspmd_compiler.runtime.elastic.messages import NOTHING_HELD, HeldReport

STATES = [
    HeldReport(),
    HeldReport(beside=1, beside_steps=4),
    *(
        HeldReport(generation, steps, ready, beside=beside, beside_steps=beside_steps)
        for generation in (0, 1)
        for steps in (4, 5)
        for ready in (False, True)
        for beside, beside_steps in ((NOTHING_HELD, 0), *(((1, 4), (1, 5)) if generation == 0 else ()))
    ),
]


def after(held: HeldReport, who: int, decision: Decision) -> HeldReport:
    """What a rank has once it has done as told."""
    if who in decision.adopting:
        held = HeldReport(held.beside, held.beside_steps)
    if who in decision.forward:
        assert held.ready, "nobody steps without its gradients"
        held = replace(held, steps=held.steps + 1, ready=False)
    return held


def check(reports: dict[int, HeldReport]) -> None:
    """All with a state get to the furthest that somebody is at; or one can't, and that is an error."""
    generation = max(each.generation for each in reports.values())
    can_turn = {who for who, each in reports.items() if each.generation != generation == each.beside}
    there = {who: each for who, each in reports.items() if each.generation == generation or who in can_turn}
    stands = {who: each.beside_steps if who in can_turn else each.steps for who, each in there.items()}
    steps = max(stands.values(), default=0)

    def is_stuck(who: int, each: HeldReport) -> bool:
        if who not in there:
            return each.generation >= 0
        return stands[who] < steps and (who in can_turn or not each.ready or stands[who] + 1 < steps)

    stuck = generation >= 0 and any(is_stuck(*each) for each in reports.items())
    if stuck:
        with pytest.raises(InternalError, match="can't come to one step"):
            decide(reports)
        return
    decision = decide(reports)
    assert (decision.held, decision.steps) == (generation, steps if generation >= 0 else 0)
    if generation < 0:
        assert not decision.holders
        return
    assert set(decision.holders) == set(there)
    ends = {who: after(held, who, decision) for who, held in reports.items()}
    assert {(ends[who].generation, ends[who].steps) for who in decision.holders} == {(generation, steps)}


def test_all_reports_of_three_ranks() -> None:
    for states in product(STATES, repeat=3):
        check(dict(enumerate(states)))


@given(st.lists(st.sampled_from(STATES), min_size=1, max_size=8))
def test_reports_of_more_ranks(states: list[HeldReport]) -> None:
    check({7 * who: held for who, held in enumerate(states)})


def test_nobody_steps_alone_where_nobody_has_passed_the_vote() -> None:
    decision = decide({0: HeldReport(0, 4, ready=True), 1: HeldReport(0, 4, ready=True)})
    assert decision == Decision(0, 4, holders=(0, 1))


def test_all_turn_to_a_checkpoint_that_some_have_turned_to() -> None:
    """A rank dies where the others come to the state of step 4, which they go back to from step 9."""
    reports = {0: HeldReport(1, 4), 1: HeldReport(0, 9, whole=False, beside=1, beside_steps=4)}
    assert decide(reports) == Decision(1, 4, adopting=(1,), holders=(0, 1))


def test_local_copies_are_stale_where_ranks_were_to_exchange_them() -> None:
    reports = {
        0: HeldReport(0, 5, whole=False, gathers=True),
        1: HeldReport(0, 4, ready=True, gathers=True),
        2: HeldReport(0, 5, gathers=True),
        3: HeldReport(0, 4, ready=True),
    }
    assert decide(reports).stale == (0, 1)
