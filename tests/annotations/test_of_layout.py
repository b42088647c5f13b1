"""From states to a layout and back: ranks hold the same pieces of the same addends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.annotations import PARTIAL, Annotation, DistributedStates, parse_states
from hspmd_compiler.annotations.of_layout import layout_states
from hspmd_compiler.layout.layout import Axis, Factor, Layout, make_layout, whole
from hspmd_compiler.layout.several_cuts import with_cuts

from .strategies import SHAPES, states


def held_by(given: DistributedStates, shape: tuple[int, ...]) -> dict[int, object]:
    return dict(Annotation.single(range(given.size), *given.placements).intervals(shape))


def layout_of(given: DistributedStates, shape: tuple[int, ...]) -> Layout:
    rows = Annotation.single(range(given.size), *given.placements).intervals(shape)
    cuts = {
        split.dim: Factor(shape[split.dim], Axis.TENSOR, tuple(held[split.dim] for held in rows.values()))
        for split in given.splits
    }
    addends = given.places(PARTIAL) if given.factor(PARTIAL) > 1 else None
    return with_cuts(whole(shape), cuts, addends)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_states_come_back_as_what_ranks_hold(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    before = data.draw(states(shape))
    found = layout_states(layout_of(before, shape), before.size)
    assert found.size == before.size or found.order == (PARTIAL,)
    if before.factor(PARTIAL) == 1:
        assert held_by(found, shape) == held_by(before, shape)
    elif found.splits:
        assert held_by(found, shape) == held_by(before, shape)
        assert found.places(PARTIAL) == before.places(PARTIAL)
    assert parse_states(str(found)) == found


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("S0x2 Dx2", "S0x2 Dx2"),
        ("Dx2 S0x2", "Dx2 S0x2"),
        ("S0(8,0,0)", "S0(8,0,0)"),
        ("S0(0:4,0:4,4:8)", "S0(0:4,0:4,4:8)"),
        ("S0x2 Px2", "S0x2 Px2"),
        ("Px2 S1x3", "Px2 S1x3"),
        ("S1x3 S0x2 Dx2", "S1x3 S0x2 Dx2"),
        ("S0x2{4,4}", "S0x2{4,4}"),
        ("S0x2/4", "S0x2"),
        ("Px2 S0(0:5,3:8)", "Px2 S0(0:5,3:8)"),
        ("S0(0:4,4:8,0:4,4:8)", "Dx2 S0x2"),
        ("Dx2 S0(0:4,0:4,4:8,4:8)", "S0(0:4,0:4,4:8,4:8,0:4,0:4,4:8,4:8)"),
    ],
)
def test_the_simplest_states_are_found(given: str, wanted: str) -> None:
    read = parse_states(given)
    assert str(layout_states(layout_of(read, (8, 6)), read.size)) == wanted


def test_pieces_of_addends_that_overlap_are_addends() -> None:
    pieces = Factor(8, Axis.TENSOR, (((0, 5),), ((3, 8),)), contrib=True)
    assert str(layout_states(make_layout(((pieces,),)), 2)) == "Px2"
    assert str(layout_states(whole((8,), frozenset({Axis.TENSOR})), 2)) == "Px2"
    assert str(layout_states(whole((8,)), 1)) == "R"
