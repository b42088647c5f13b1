"""Pipelines that share sequences: what a strategy says of them, and what it can't."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.base.context import ContextCut
from hspmd_compiler.errors import StrategyError
from hspmd_compiler.strategy.check import check
from hspmd_compiler.strategy.context_spec import ContextChoice, ContextSpec
from hspmd_compiler.strategy.formats.read import read_text
from hspmd_compiler.strategy.smaller import smaller_strategies
from hspmd_compiler.strategy.strategy import (
    PipelineSpec,
    Recompute,
    RecomputeKind,
    ScheduleKind,
    StageSpec,
    Strategy,
)
from hspmd_compiler.strategy.write import TextForm, strategy_text

SPECS = st.builds(
    ContextSpec,
    st.just((1, 3)),
    st.sampled_from([(), (3, 4), (1, 5)]),
    st.integers(0, 3),
    st.sampled_from(ContextChoice),
    st.sampled_from(ContextCut),
)


def one_stage(device: int, *sizes: int) -> PipelineSpec:
    return PipelineSpec((StageSpec((device,), (0, 4)),), sizes)


def shared(*context: ContextSpec) -> Strategy:
    sizes = ((2, 1), (3, 1), (4,), (3, 1))
    return Strategy(tuple(one_stage(i, *own) for i, own in enumerate(sizes)), context=context)


@given(st.lists(SPECS, max_size=1), st.sampled_from(TextForm))
def test_what_is_written_reads_back(context: list[ContextSpec], form: TextForm) -> None:
    strategy = shared(*context)
    assert read_text(strategy_text(strategy, form)) == strategy
    assert ("context" in strategy_text(strategy)) == bool(context)


def test_members_run_the_same_samples() -> None:
    strategy = replace(shared(ContextSpec((1, 3))), accumulation=2)
    assert strategy.slice_size == 3 + 4 + 4
    assert strategy.global_batch == 22
    assert strategy.rows(3) == strategy.rows(1) == [(3, 6), (6, 7), (14, 17), (17, 18)]
    assert strategy.rows(2) == [(7, 11), (18, 22)]
    assert shared().global_batch == 15


@given(SPECS, st.integers(5, 40))
def test_members_have_each_token_but_padding_once(spec: ContextSpec, tokens: int) -> None:
    runs = spec.runs(tokens)
    held = sorted(place for own in runs for low, high in own for place in range(low, high))
    assert held == list(range(sum(spec.lengths) if spec.lengths else tokens - spec.padding))
    assert [sum(high - low for low, high in own) for own in runs] == list(spec.lengths_of(tokens))


def test_every_rule_that_needs_no_model(expect: Callable[[str, str], None]) -> None:
    strategy = shared(
        ContextSpec((0, 1, 9), (3, 4)),
        ContextSpec((1, 3), (0, 0), padding=-1),
        ContextSpec((2,)),
    )
    two = PipelineSpec((StageSpec((4,), (0, 1)), StageSpec((5,), (1, 4))), (3, 1))
    again = PipelineSpec((StageSpec((6,), (0, 4)),), (3, 1), (Recompute((0, 4), RecomputeKind.FULL),))
    more = replace(
        strategy,
        pipelines=(*strategy.pipelines, two, again),
        context=(*strategy.context, ContextSpec((4, 5))),
    )
    with pytest.raises(StrategyError) as caught:
        check(more)
    expect("strategy/context_rules", str(caught.value))


def test_unlike_stages_meet_in_one_order_under_gpipe() -> None:
    pipelines = (
        PipelineSpec((StageSpec((0,), (0, 4)),), (1, 1)),
        PipelineSpec((StageSpec((1,), (0, 2)), StageSpec((2,), (2, 4))), (1, 1)),
    )
    strategy = Strategy(pipelines, context=(ContextSpec((0, 1)),))
    with pytest.raises(StrategyError, match="schedule gpipe"):
        check(strategy)
    check(replace(strategy, schedule=ScheduleKind.GPIPE))


def test_a_bad_form_is_told_by_its_keys(expect: Callable[[str, str], None]) -> None:
    text = strategy_text(shared(ContextSpec((1, 3))), TextForm.YAML)
    bad = text.replace("pipelines: [1, 3]", "pipelines: 1, form: rings, cut: balance, length: [1, 2]")
    assert bad != text
    with pytest.raises(StrategyError) as caught:
        read_text(bad)
    expect("strategy/context_form", str(caught.value))


def test_a_group_has_no_smaller_strategy() -> None:
    assert not list(smaller_strategies(shared(ContextSpec((1, 3))), {0}))
    assert list(smaller_strategies(shared(), {0}))
