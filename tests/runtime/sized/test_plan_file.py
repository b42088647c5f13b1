"""A step's plan as a file, and what a program of sizes refuses of it: all of it at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.base.pipeline_schedule import ScheduleKind
from hspmd_compiler.errors import RunError
from hspmd_compiler.program.sized.plan_check import check_plan, in_order
from hspmd_compiler.program.sized.plan_file import (
    plan_digest,
    plan_from_text,
    plan_text,
    read_plan,
    write_plan,
)
from hspmd_compiler.program.sized.size_range import SizeRange
from hspmd_compiler.program.sized.sizes import Count, MicroSizes
from hspmd_compiler.program.sized.step_plan import StepPlan

TOKENS = SizeRange(Count.TOKENS, 1, 100, (), (2, 1), ScheduleKind.ONE_F_ONE_B, (2, 3))
SAMPLES = replace(TOKENS, unit=Count.SAMPLES, degrees=())
RING = replace(TOKENS, groups=((0, 1),))

Lengths = st.lists(st.integers(0, 50), max_size=3).map(tuple)
Micros = st.builds(
    MicroSizes,
    samples=st.integers(0, 5),
    tokens=st.integers(0, 10**6),
    cuts=st.lists(Lengths, max_size=2).map(tuple),
    ring=Lengths,
    first=st.integers(0, 10**9),
    documents=Lengths,
)
Plans = st.lists(st.lists(Micros, max_size=4).map(tuple), max_size=4).map(lambda each: StepPlan(tuple(each)))


@given(Plans, Plans)
def test_a_plan_reads_back_and_has_one_digest(plan: StepPlan, other: StepPlan) -> None:
    assert plan_from_text(plan_text(plan)) == plan
    assert (plan_digest(plan) == plan_digest(other)) == (plan == other)


def test_a_file_reads_back(tmp_path: Path) -> None:
    plan = in_order([[MicroSizes(1, 7, ((3, 4),))], [MicroSizes(1, 9, documents=(4, 5))]], Count.TOKENS)
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
    assert json.loads((tmp_path / "plan.json").read_text()) == {
        "version": 1,
        "pipelines": [[{"tokens": 7, "cuts": [[3, 4]]}], [{"tokens": 9, "first": 7, "documents": [4, 5]}]],
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "pipelines"),
        ('{"pipelines": [[{"tokens": -1}]]}', "pipelines[0][0].tokens"),
        ('{"pipelines": [[{"tokens": 1.5}, {"token": 2}]]}', "pipelines[0][1].token"),
        ('{"pipelines": [[{"tokens": true}]]}', "pipelines[0][0].tokens"),
        ('{"pipelines": [[{"cuts": [3]}]]}', "pipelines[0][0].cuts[0]"),
        ('{"version": 2, "pipelines": []}', "version"),
        ('{"pipelines": [], "pipelines": []}', "stands 2 times"),
        ("[" * 100_000, "nested too deep"),
        ("nothing", "malformed JSON"),
    ],
)
def test_what_is_no_plan_is_told(text: str, told: str) -> None:
    with pytest.raises(RunError) as error:
        plan_from_text(text)
    assert told in str(error.value)


def _one(**changes: object) -> StepPlan:
    return StepPlan(((replace(MicroSizes(1, 12), **changes),), ()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sizes", "plan", "told"),
    [
        (TOKENS, StepPlan(((MicroSizes(1, 3),),)), "1 pipelines, the program has 2: the plan of another"),
        (TOKENS, StepPlan(((), ())), "no micro-batch in any of them"),
        (
            TOKENS,
            _one(tokens=101),
            "pipelines[0][0].tokens 101: the program was compiled for 1 to 100 tokens",
        ),
        (TOKENS, _one(tokens=0), "0: the program was compiled for 1 to 100 tokens"),
        (TOKENS, _one(samples=2), "2: a micro-batch is one row of tokens"),
        (TOKENS, _one(cuts=((4, 4, 2, 2),)), "in 4 pieces; stages cut tokens in: 2, 3"),
        (TOKENS, _one(cuts=((5, 6),)), "11 tokens in all, the micro-batch has 12"),
        (TOKENS, _one(cuts=((-1, 13),)), "a piece below 0"),
        (TOKENS, _one(cuts=((5, 7), (6, 6))), "a second cut in 2 pieces"),
        (TOKENS, _one(documents=(5, 6)), "11 tokens in all, the row has 12"),
        (TOKENS, _one(documents=(0, 12)), ""),
        (TOKENS, _one(ring=(12,)), "given, where no other pipeline takes a piece of the row"),
        (TOKENS, _one(first=3), "3: what lies from 0 to 3 is left out"),
        (TOKENS, StepPlan(((MicroSizes(1, 5),), (MicroSizes(1, 5, first=4),))), "from 4 to 5 is taken twice"),
        (SAMPLES, StepPlan(((MicroSizes(101),), ())), "101: the program was compiled for 1 to 100 samples"),
        (SAMPLES, _one(), "given, where only samples vary"),
        (SAMPLES, StepPlan(((MicroSizes(3),), (MicroSizes(4, first=3),))), ""),
        (RING, StepPlan(((MicroSizes(1, 5, ring=(5, 7)),), ())), "not all of pipelines [0, 1] have a piece"),
        (
            RING,
            StepPlan(((MicroSizes(1, 5, ring=(5, 7)),), (MicroSizes(1, 6, ring=(5, 7), first=5),))),
            "[5, 7], but the pipelines have [5, 6] tokens",
        ),
        (RING, StepPlan(((MicroSizes(1, 0, ring=(0, 7)),), (MicroSizes(1, 7, ring=(0, 7)),))), ""),
    ],
)
def test_a_plan_that_does_not_fit_is_told(sizes: SizeRange, plan: StepPlan, told: str) -> None:
    if not told:
        check_plan(plan, sizes)
        return
    with pytest.raises(RunError) as error:
        check_plan(plan, sizes)
    assert told in str(error.value)


def test_all_bad_values_are_told_at_once() -> None:
    plan = StepPlan(((MicroSizes(1, 200), MicroSizes(3, 5, ((1, 1),), first=200)), ()))
    with pytest.raises(RunError) as error:
        check_plan(plan, TOKENS)
    for path in ("pipelines[0][0].tokens", "pipelines[0][1].samples", "pipelines[0][1].cuts[0]"):
        assert path in str(error.value)


@given(Plans, st.sampled_from([TOKENS, SAMPLES, RING]))
def test_no_plan_breaks_the_check(plan: StepPlan, sizes: SizeRange) -> None:
    _refused_or_not(lambda: check_plan(plan, sizes))


def _refused_or_not(check: Callable[[], None]) -> None:
    try:
        check()
    except RunError as error:
        assert error.details
