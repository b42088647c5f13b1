"""The key `layouts` of a strategy: read and written, and every bad value in one error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hspmd_compiler.annotations import DistributedStates, Duplicate, Partial, Split
from hspmd_compiler.errors import StrategyError
from hspmd_compiler.strategy.formats.read import read_strategy, read_text
from hspmd_compiler.strategy.strategy import LayoutWish, Strategy
from hspmd_compiler.strategy.wish_states import wish_states
from hspmd_compiler.strategy.write import TextForm, strategy_text

FORM = {
    "pipelines": [
        {
            "stages": [{"devices": [0, 1, 2], "layers": 1}, {"devices": [3], "layers": 1}],
            "micro_batches": [4],
        }
    ],
    "layouts": [
        {"at": "layers.*.linear1", "to": "S2(4,2,2)"},
        {"at": "x", "to": "S0"},
        {"at": "layers.1.linear1", "to": "D"},
    ],
}


def strategy(*layouts: object) -> Strategy:
    return read_strategy({**FORM, "layouts": list(layouts)})


def test_they_are_read_and_written() -> None:
    found = read_strategy(FORM)
    assert found.layouts[0] == LayoutWish("layers.*.linear1", "S2(4,2,2)")
    for form in TextForm:
        text = strategy_text(found, form)
        assert read_text(text) == found
        assert strategy_text(read_text(text), form) == text
    plain = strategy_text(read_strategy({"pipelines": FORM["pipelines"]}))
    assert "layouts" not in plain


def test_the_last_that_names_an_anchor_counts() -> None:
    found = read_strategy(FORM)
    names = ("layers.0.linear1", "layers.1.linear1", "enc.layers.1.linear1", "layers.0.linear1#2", "x", "a.x")
    assert [found.layout_at(name) for name in names] == [0, 2, None, None, 1, None]


def test_what_a_layout_says_on_a_stage() -> None:
    assert wish_states("S2(4,2,2)", 3) == DistributedStates((Split(2, 3, (4, 2, 2)),))
    assert wish_states("S0x2 Dx2", 4) == DistributedStates((Split(0, 2), Duplicate(2)))
    assert wish_states("S0x2 Dx2", 3) is None
    assert wish_states("S1", 3, (2, 0, 1)) == DistributedStates((Split(1, 3, (2, 0, 1)),))
    assert wish_states(" S1/8 ", 2) == DistributedStates((Split(1, 2, unit=8),))
    assert wish_states("D", 5) == DistributedStates((Duplicate(5),))
    assert wish_states("P", 2) == DistributedStates((Partial(2),))
    assert wish_states("S2(4,2,2)", 1) == DistributedStates()


def test_every_bad_value_is_listed(expect: Callable[[str, str], None]) -> None:
    with pytest.raises(StrategyError) as caught:
        strategy(
            {"at": "layers..linear1", "to": "S2(4,2,2)"},
            {"at": "x", "to": "S0(4,2"},
            {"at": "x", "to": "S0(4,2)"},
            {"at": "y", "to": "S0x3 S0x1"},
            {"at": "z", "to": "S0(0,0,0)"},
            {"at": "w", "to": "[0,1,2] <S0x3>"},
            {"at": "u", "to": "S0/0"},
            {"at": "v"},
            {"at": 3, "to": 4, "with": 5},
            "linear1",
        )
    expect("strategy/bad_layouts", str(caught.value))
