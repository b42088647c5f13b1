"""HSPMD's six sender rules, beside what its own planner chose; skipped without the reference data."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from hspmd_compiler.switching.sender_rules import SenderRule, SliceSenders

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SIX = [rule for rule in SenderRule if rule is not SenderRule.LEAST_LOAD]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("switch_transitions")


def test_each_rule_chooses_as_hspmd_does_in_small_transitions(reference: Path, given: Any) -> None:
    seen = 0
    for transition in given.transitions_of(reference / "hspmd" / "golden_bsr_small.json"):
        for name, expected in transition.expected.items():
            chosen = given.by_rule(transition, SenderRule[name])
            named = [{str(needer): sender for needer, sender in own.items()} for own in chosen]
            assert named == expected["sender_of"], (transition.name, name)
            lost = any(each.is_lost for each in transition.slices)
            assert lost is ("error" in expected), (transition.name, name)
            seen += 1
    assert seen


def test_volumes_of_each_rule_are_hspmd_s_and_ours_are_least(reference: Path, given: Any) -> None:
    """Every number of every transition. Ours: the bound across nodes, and no rank sends more across."""
    seen = 0
    for transition in given.transitions_of(reference / "hspmd" / "golden_bsr_plans_stats.json"):
        assert not transition.problem, transition.name
        ours = given.our_volumes(transition)
        for key, expected in transition.expected.items():
            name, _, form = key.partition("/")
            chosen = given.by_rule(transition, SenderRule[name], form == "per_tensor")
            found = given.rule_volumes(transition, chosen)
            assert bool(found["errors"]) == bool(expected["errors"])
            assert found | {"errors": expected["errors"]} == expected, (transition.name, key)
            assert ours["max_send_inter"] <= expected["max_send_inter"]
            assert ours["inter_node_numel"] <= expected["inter_node_numel"]
            seen += 1
        assert ours["inter_node_numel"] == ours["bound_numel"]
        assert ours["local_reuse_numel"] + ours["moved_numel"] == sum(
            each.elements * len(each.needers) for each in transition.slices
        )
    assert seen


TWO_NODES = (0, 0, 1, 1, 2)


@pytest.mark.parametrize(
    ("rule", "first", "second"),
    [
        (SenderRule.MIN_IDX, {1: 0, 2: 0, 4: 0}, {1: 0, 2: 0, 4: 0}),
        (SenderRule.FCFS, {1: 3, 2: 3, 4: 3}, {1: 3, 2: 3, 4: 3}),
        (SenderRule.ROUND_ROBIN, {1: 3, 2: 0, 4: 3}, {1: 3, 2: 0, 4: 3}),
        (SenderRule.MULTI_NODE_ROUND_ROBIN, {1: 0, 2: 3, 4: 0}, {1: 0, 2: 3, 4: 0}),
        (SenderRule.GREEDY, {1: 3, 2: 3, 4: 3}, {1: 0, 2: 0, 4: 0}),
        (SenderRule.NEW_GREEDY, {1: 0, 2: 3, 4: 3}, {1: 0, 2: 3, 4: 0}),
    ],
)
def test_rules_by_hand(rule: SenderRule, first: dict[int, int], second: dict[int, int]) -> None:
    """Two slices alike, that ranks 3 and 0 hold; 3 needs it too and keeps its own."""
    senders = SliceSenders(rule, TWO_NODES)
    holders: Sequence[int] = (3, 0)
    assert senders.choose(10, holders, (1, 2, 3, 4)) == first
    assert senders.choose(10, holders, (1, 2, 3, 4)) == second


def test_all_rules_are_named() -> None:
    assert len(SIX) == 6
